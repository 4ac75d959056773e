// runtime/dispatch/prepare_arguments.h: prepares a call's arguments before they are bound. This is the part that may send.
#pragma once

#include "runtime/api/gradient_layout.h"
#include "runtime/rules/op_info.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// Prepares the arguments of `op` on the stack, so that BoundCall and the kernels only have to read them:
///   - copied views whose sources were written to are fetched again;
///   - plain tensors except numbers become replicas, if objection_to_plain() has no objection;
///   - if a plain tensor is written to, its distributed operands get distributed gradients (keep_gradient_kind());
///   - leaves that require a gradient get hooks that lay it out (runtime/api/gradient_layout.h).
/// Collective if a view is stale or a plain operand is compared, alike on all ranks.
/// Throws: c10::ValueError for a plain tensor that is not a replica, c10::Error for a write to an expanded tensor.
void prepare_arguments(const OpInfo& op, torch::jit::Stack& stack);

/// The part of prepare_arguments() for one distributed operand.
inline void prepare_operand(DTensorImpl& operand) {
  if (operand.view_link()) [[unlikely]]
    operand.refresh();
  if (wants_gradient_layout(operand)) [[unlikely]]
    lay_out_gradient(operand);
}

/// Throws: c10::Error for an expanded tensor with elements, because several of them share memory. A rank's piece may have only one of these
/// elements, or be a copy, so the kernel would refuse the write on some ranks only.
void check_writable(const std::string& op, c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace shardwise
