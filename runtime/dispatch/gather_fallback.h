// runtime/dispatch/gather_fallback.h: runs operators without a rule: gathers, computes densely, and shards written tensors again.
#pragma once

#include "runtime/dispatch/bound_call.h"

namespace shardwise {

/// Runs `call` with every input replicated. Results are replicated; written tensors keep their layout. Correct for any operator whose
/// result is a function of its inputs' values. Warns once per operator name if it moved data.
/// Throws: c10::NotImplementedError on non-members if the result's shape depends on values.
void run_gathered(BoundCall& call);

/// Throws c10::NotImplementedError: the result of `op` depends on values of other ranks.
[[noreturn]] void refuse_outside(const std::string& op, const DeviceMesh& mesh);

}  // namespace shardwise
