// runtime/dispatch/gather_fallback.h: the answer for operators without a rule: gather, compute densely, shard written tensors again.
#pragma once

#include "runtime/dispatch/bound_call.h"

namespace shardwise {

/// Answers `call` with every input replicated; results are replicated, written tensors keep their layout. Right for any operator
/// whose result is a function of its inputs' values. Warns once per operator name where it moved data.
/// Throws: c10::NotImplementedError on non-members where only values tell the result's shape.
void run_gathered(BoundCall& call);

/// Throws c10::NotImplementedError: values of other ranks say what `op` gives.
[[noreturn]] void refuse_outside(const std::string& op, const DeviceMesh& mesh);

}  // namespace shardwise
