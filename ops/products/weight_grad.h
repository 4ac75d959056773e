// ops/products/weight_grad.h: the gradient of a matrix by which a batch was multiplied.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Contracts all dims but the last: [..., n] and [..., k] give [n, k]. All batch dims stay sharded, the
/// middle ones too, which flattening for a matrix product would gather; the result is then Partial. Differentiable.
///
/// It is the operator shardwise::linear_weight_grad, whose rule says "...n,...k->nk".
at::Tensor weight_grad(const at::Tensor& grad, const at::Tensor& input);

}  // namespace shardwise
