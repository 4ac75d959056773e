#include "ops/products/product_node.h"

#include "runtime/tensor/autograd_node.h"

#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>

namespace shardwise {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct ProductBackward final : torch::autograd::Node {
  const char* name_in_graph = "";
  ProductGradients gradients = nullptr;
  SavedVariable left, right;
  c10::DimVector left_sizes, right_sizes;

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    variable_list result(num_outputs());
    if (!grads[0].defined()) return result;
    const std::array<bool, 3> mask{task_should_compute_output(0), task_should_compute_output(1),
                                   num_outputs() > 2 && task_should_compute_output(2)};
    const Factors factors{mask[1] ? left.unpack() : at::Tensor(), mask[0] ? right.unpack() : at::Tensor(), left_sizes,
                          right_sizes};
    variable_list all = gradients(grads[0], factors, mask);
    all.resize(num_outputs());
    return all;
  }
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    left.reset_data();
    right.reset_data();
  }
  std::string name() const override { return name_in_graph; }
};

}  // namespace

at::Tensor with_product_node(at::Tensor product, const char* name, ProductGradients gradients, const at::Tensor& left,
                             const at::Tensor& right, const at::Tensor& bias) {
  const bool needs_left = left.requires_grad(), needs_right = right.requires_grad();
  const bool needs_bias = bias.defined() && bias.requires_grad();
  if (!c10::GradMode::is_enabled() || !(needs_left || needs_right || needs_bias)) return product;
  auto node = make_node<ProductBackward>();
  node->set_next_edges(bias.defined() ? torch::autograd::collect_next_edges(left, right, bias)
                                      : torch::autograd::collect_next_edges(left, right));
  node->name_in_graph = name;
  node->gradients = gradients;
  if (needs_right) node->left = SavedVariable(left, /*is_output=*/false);
  if (needs_left) node->right = SavedVariable(right, /*is_output=*/false);
  node->left_sizes = c10::DimVector(left.sizes());
  node->right_sizes = c10::DimVector(right.sizes());
  torch::autograd::set_history(product, node);
  return product;
}

bool have_tangents(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias) {
  const auto has_tangent = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
  };
  return has_tangent(left) || has_tangent(right) || has_tangent(bias);
}

}  // namespace shardwise
