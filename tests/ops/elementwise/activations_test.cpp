#include "tests/support/dense.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::activations_test {
namespace {

TEST(ActivationsTest, DerivativesAreLinearInTheGradient) {
  EXPECT_EQ(to_string(rule("aten::gelu")), "pointwise");
  EXPECT_EQ(to_string(rule("aten::gelu_backward")), "pointwise linear in the first");
  EXPECT_EQ(to_string(rule("aten::glu")), "pointwise whole(dim)");
  EXPECT_EQ(to_string(rule("aten::glu_backward")), "glu_backward linear in the first");
}

TEST(ActivationsTest, ValuesAndDerivatives) {
  using Unary = at::Tensor (*)(const at::Tensor&);
  const std::vector<std::pair<const char*, Unary>> functions = {
      {"relu", at::relu},
      {"silu", at::silu},
      {"mish", at::mish},
      {"sigmoid", at::sigmoid},
      {"hardswish", at::hardswish},
      {"hardsigmoid", at::hardsigmoid},
      {"log_sigmoid", at::log_sigmoid},
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
      {"gelu tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {"elu", [](const at::Tensor& x) { return at::elu(x); }},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 0.1); }},
      {"softplus", [](const at::Tensor& x) { return at::softplus(x); }},
      {"hardtanh", [](const at::Tensor& x) { return at::hardtanh(x); }},
      {"glu", [](const at::Tensor& x) { return at::glu(x, 1); }}};
  for (const auto& [name, f] : functions)
    expect_same_as_dense(name, [f = f](const Tensors& t) { return f(t[0]); }, {{5, 4}},
                         {.is_exact = false, .max_combinations = 20});
  expect_same_as_dense("prelu", [](const Tensors& t) { return at::prelu(t[0], t[1]); }, {{5, 4}, {4}},
                       {.is_exact = false});
}

}  // namespace
}  // namespace shardwise::activations_test
