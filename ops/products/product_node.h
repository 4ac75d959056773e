// ops/products/product_node.h: the node of a product in torch's graph. It keeps only the factors that the gradients need.
//
//   y = x @ w, of frozen w:   keeps w, for the gradient of x; x may be freed, or written to
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <array>

namespace shardwise {

/// The sizes of both factors, and the factors that gradients need: a factor is undefined unless the other one requires a gradient.
struct Factors {
  at::Tensor left, right;
  c10::DimVector left_sizes, right_sizes;
};

/// Returns the gradients of left, right and a bias that `mask` requests. Differentiable.
using ProductGradients = torch::autograd::variable_list (*)(const at::Tensor& grad, const Factors& factors,
                                                            std::array<bool, 3> mask);

/// Returns `product`, which was computed below autograd from `left`, `right` and maybe a bias, with its history if gradients are recorded. `name`, as
/// in torch's graphs ("LinearBackward0"), lives as long as the program.
at::Tensor with_product_node(at::Tensor product, const char* name, ProductGradients gradients, const at::Tensor& left,
                             const at::Tensor& right, const at::Tensor& bias = {});

/// True if an operand has a forward-mode tangent. torch's own formulas differentiate such a product.
bool have_tangents(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias = {});

}  // namespace shardwise
