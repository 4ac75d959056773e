// runtime/dispatch/plain_gradient.h: gradients of plain tensors that count as replicas.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Has `plain` get plain gradients from now on, whole on every rank, where torch's derivative formulas give distributed ones. Costs
/// nothing in the forward; in the backward what it takes to replicate the gradient. Once is enough, more often does nothing.
/// Pre: autograd records what is done to `plain`.
void keep_gradient_plain(const at::Tensor& plain);

}  // namespace shardwise
