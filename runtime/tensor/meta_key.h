// runtime/tensor/meta_key.h: the dispatch key by which operators on distributed meta tensors come to Shardwise.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace shardwise {

/// Distributed tensors on meta have this key, too, and operators see it first. torch itself does not use it.
///
/// The dispatcher ranks the backends of operands, and Meta above ours. So it would call torch's meta kernel for a distributed tensor next to
/// a plain tensor on meta. The kernel of this key passes the call on without the backend Meta.
inline constexpr c10::DispatchKey kMetaKey = c10::DispatchKey::DeferredInit;

}  // namespace shardwise
