// ops/support/plain_gradients.h: operators whose derivative formula in torch returns plain tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardwise {

/// For an operator ("sgn", "normal.Tensor_float") whose formula returns plain zeros for some operand: distributes every operand's gradient with the
/// operand's layout (replicated if the operand is Partial).
void lay_out_gradients(const std::string& op);

/// `input`, with a node in its graph that distributes a plain gradient as lay_out_gradients() does.
at::Tensor with_distributed_gradient(const at::Tensor& input);

}  // namespace shardwise
