// runtime/dispatch/composite.h: operators that torch composes from others.
//
// The inner operators find their own rules. Between them torch makes plain tensors from shapes (a range, a mask, an empty result), which
// count as replicated there.
#pragma once

#include <c10/util/ArrayRef.h>

#include <string_view>

namespace shardwise {

/// Registers the composite operators of aten for which we have neither a rule nor a kernel: the caller's plain tensors are checked as for
/// any operator, torch's composition runs under ImplicitReplication, and plain results are wrapped as replicas.
/// `without_plain`: composites that make no plain tensor ("aten::reshape"); torch's own kernel runs them, which is faster.
/// Called after register_dispatch().
void register_composites(c10::ArrayRef<std::string_view> without_plain);

}  // namespace shardwise
