// ops/elementwise/activations.cpp: activation functions and their derivatives, which are linear in the gradient.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/kernels.h"

#include <ATen/Functions.h>

namespace shardwise {
namespace {

/// The gradient has half the extent along the whole "dim".
void describe_glu_backward(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[1].sizes;
  const int64_t dim = call.arg("dim").toInt();
  const int64_t halved = dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim;
  const Axes self = signature.add_factors(sizes);
  Axes grad = self;
  grad[halved].factor = signature.add_factor(call.operands[0].sizes[halved]);
  for (const Axis& axis : {grad[halved], self[halved]}) signature.factors[axis.factor].is_whole = true;
  signature.set({grad, self}, {self});
}

// torch's log_sigmoid returns a buffer whose shape depends on the device; ours returns an empty one.

std::tuple<at::Tensor, at::Tensor> log_sigmoid_forward(const at::Tensor& self) {
  return {at::clamp_max(self, 0).sub_(at::log1p(at::exp(-at::abs(self)))), self.new_empty({0})};
}

at::Tensor log_sigmoid_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& /*buffer*/) {
  return grad * at::sigmoid(-self);
}

}  // namespace

void register_activations(RuleTable& table) {
  add_overloads(table,
                {"relu", "leaky_relu", "elu", "celu", "gelu", "silu", "mish", "sigmoid", "softplus", "hardtanh",
                 "hardswish", "hardsigmoid", "hardshrink", "softshrink", "_prelu_kernel", "_prelu_kernel_backward"},
                pointwise());
  add_overloads(table,
                {"threshold_backward", "leaky_relu_backward", "elu_backward", "gelu_backward", "silu_backward",
                 "mish_backward", "sigmoid_backward", "tanh_backward", "logit_backward", "softplus_backward",
                 "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward", "hardshrink_backward",
                 "softshrink_backward", "native_dropout_backward"},
                pointwise().linear_in_first());
  table.add("aten::glu", pointwise().whole("dim").sampled());
  table.add("aten::glu_backward", Rule("glu_backward", describe_glu_backward).sampled().linear_in_first());
  aten_kernels().impl("log_sigmoid_forward", &log_sigmoid_forward);
  aten_kernels().impl("log_sigmoid_backward", &log_sigmoid_backward);
}

}  // namespace shardwise
