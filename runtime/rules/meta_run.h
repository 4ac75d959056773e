// runtime/rules/meta_run.h: a call of an operator with every distributed operand replaced by a meta tensor of its global shape.
#pragma once

#include "runtime/rules/op_call.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// The results. Throws: what the operator throws for these shapes and scalars.
torch::jit::Stack run_on_meta(const OpCall& call);

/// How far behind the beginning of the tensor that it views the one result of the call begins, in elements of the result.
int64_t offset_of_view(const OpCall& call);

}  // namespace shardwise
