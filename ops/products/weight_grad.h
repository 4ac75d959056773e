// ops/products/weight_grad.h: the gradient of a matrix that multiplied a batch.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Contracts all dims but the last: [..., n] and [..., k] give [n, k]. All batch dims stay sharded, and the result is then Partial. (Flattening them
/// for a matrix product would gather all but the first.) Differentiable.
///
/// It is the operator shardwise::linear_weight_grad, whose rule says "...n,...k->nk".
at::Tensor weight_grad(const at::Tensor& grad, const at::Tensor& input);

}  // namespace shardwise
