// runtime/dispatch/direct_operand.h: which operands a call whose decision is_direct may hand to the kernel at once.
#pragma once

#include "runtime/dispatch/gradient_layout.h"

namespace shardwise {

/// True if the pieces are here and plain, and nothing has to be noted about the tensor. Cost: some reads.
inline bool is_for_kernel(const DTensorImpl& tensor) {
  return tensor.is_ready() && !tensor.local_form() && !wants_gradient_layout(tensor);
}
/// The same for a tensor that is not distributed: a number whose history nobody follows.
inline bool is_for_kernel(const at::Tensor& plain) { return plain.dim() == 0 && !plain.requires_grad(); }

}  // namespace shardwise
