// runtime/rules/meta_run.h: runs an operator with each distributed operand replaced by a meta tensor of its global shape.
#pragma once

#include "runtime/rules/op_call.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// The results of the call. Throws: the operator's errors for these shapes and scalars.
torch::jit::Stack run_on_meta(const OpCall& call);

/// The offset of the call's only result in the tensor that it views, in elements of the result.
int64_t offset_of_view(const OpCall& call);

}  // namespace shardwise
