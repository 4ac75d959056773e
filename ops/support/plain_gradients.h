// ops/support/plain_gradients.h: derivative formulas of torch that answer with plain tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardwise {

/// For an operator ("sgn", "normal.Tensor_float") whose formula in torch gives some operand plain zeros of the right shape: every operand's
/// gradient is laid out as the operand (replicated where that is Partial).
void lay_out_gradients(const std::string& op);

/// `input`, whose gradient is laid out so whatever comes back.
at::Tensor with_distributed_gradient(const at::Tensor& input);

}  // namespace shardwise
