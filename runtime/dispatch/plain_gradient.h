// runtime/dispatch/plain_gradient.h: gradients of plain tensors that count as replicas.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// From now on `plain` gets plain gradients, whole on every rank, even if torch's derivative formulas give distributed ones. Costs nothing
/// in the forward, and the replication of the gradient in the backward. Further calls for the same tensor do nothing.
/// Pre: autograd records operations on `plain`.
void keep_gradient_plain(const at::Tensor& plain);

}  // namespace shardwise
