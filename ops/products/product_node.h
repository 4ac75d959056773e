// ops/products/product_node.h: the node of a product in torch's graph, which keeps of two factors those that the gradients need.
//
//   y = x @ w, of frozen w:   keeps w, for the gradient of x; x may be freed, or written to
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <array>

namespace shardwise {

/// The shapes of both factors, and those of them that gradients need: a factor is undefined unless the other one requires a gradient.
struct Factors {
  at::Tensor left, right;
  c10::DimVector left_sizes, right_sizes;
};

/// The gradients of left, right and a bias, where `mask` asks for them. Differentiable.
using ProductGradients = torch::autograd::variable_list (*)(const at::Tensor& grad, const Factors& factors,
                                                            std::array<bool, 3> mask);

/// `product`, of `left`, `right` and maybe a bias, computed below autograd, with its history where gradients are recorded. `name`, as in
/// torch's graphs ("LinearBackward0"), lives as long as the program.
at::Tensor with_product_node(at::Tensor product, const char* name, ProductGradients gradients, const at::Tensor& left,
                             const at::Tensor& right, const at::Tensor& bias = {});

/// True for operands with forward-mode tangents, whose product torch's own formulas differentiate.
bool have_tangents(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias = {});

}  // namespace shardwise
