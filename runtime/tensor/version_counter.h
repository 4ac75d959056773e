// runtime/tensor/version_counter.h: whether autograd counts the writes to two tensors together.
#pragma once

#include <c10/core/TensorImpl.h>

namespace shardwise {

/// True if both refer to one counter, so that a write to either one counts for both. Only reads. False for tensors made in inference mode,
/// which have no counter.
bool share_version_counter(const c10::TensorImpl& a, const c10::TensorImpl& b);

}  // namespace shardwise
