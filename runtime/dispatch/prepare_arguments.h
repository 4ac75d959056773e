// runtime/dispatch/prepare_arguments.h: what a call does to its arguments before they are bound: the part that may send.
#pragma once

#include "runtime/rules/op_info.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// Brings the arguments of `op` on the stack to a state that BoundCall and the kernels only read:
///   - copied views whose sources were written to are fetched again;
///   - plain tensors, but for numbers, become replicas where objection_to_plain() has none;
///   - leaves that require a gradient get its layout (runtime/dispatch/gradient_layout.h).
/// Collective where a view is stale or a plain operand is compared; the same on all ranks.
/// Throws: c10::ValueError for a plain tensor that is no replica, c10::Error for a write to an expanded tensor.
void prepare_arguments(const OpInfo& op, torch::jit::Stack& stack);

/// Throws: c10::Error for an expanded tensor with elements, which has several of them in one place. What a rank holds of it may have one, or a copy: the
/// ranks would not agree on whether the kernel refuses it.
void check_writable(const std::string& op, c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace shardwise
