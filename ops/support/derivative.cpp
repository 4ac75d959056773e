#include "ops/support/derivative.h"

#include "runtime/tensor/autograd_node.h"
#include "text/check.h"

#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>

namespace shardwise {
namespace {

struct OwnBackward final : torch::autograd::Node {
  std::vector<torch::autograd::SavedVariable> saved;
  const char* name_in_graph = "";
  Derivative derivative;

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    if (!grads[0].defined()) return variable_list(num_outputs());
    variable_list tensors;
    for (const auto& variable : saved) tensors.push_back(variable.unpack());
    Wanted wanted{};
    for (size_t i = 0; i < num_outputs(); ++i) wanted[i] = task_should_compute_output(i);
    variable_list result = derivative(grads[0], tensors, wanted);
    result.resize(num_outputs());
    return result;
  }
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (auto& variable : saved) variable.reset_data();
  }
  std::string name() const override { return name_in_graph; }
};

struct BackwardOfAll final : torch::autograd::Node {
  const char* name_in_graph = "";
  std::function<at::Tensor(const variable_list& grads)> derivative;

  variable_list apply(variable_list&& grads) override {
    const bool any = std::ranges::any_of(grads, [](const at::Tensor& grad) { return grad.defined(); });
    return {any ? derivative(grads) : at::Tensor()};
  }
  std::string name() const override { return name_in_graph; }
};

void check_tangents(const at::Tensor& input, const at::Tensor& result, const char* name) {
  SW_CHECK_NOT_IMPLEMENTED(!has_tangent(input) || has_tangent(result),
                           "[{}] has no forward-mode derivative. Use the backward, or the operator on plain tensors.",
                           name);
}

}  // namespace

at::Tensor with_derivative(c10::ArrayRef<at::Tensor> inputs, at::Tensor result, const variable_list& saved,
                           const char* name, Derivative derivative) {
  for (const at::Tensor& input : inputs) check_tangents(input, result, name);
  const bool requires_grad = std::ranges::any_of(inputs, [](const at::Tensor& input) { return input.requires_grad(); });
  if (!requires_grad || !c10::GradMode::is_enabled()) return result;
  TORCH_INTERNAL_ASSERT(inputs.size() <= std::tuple_size_v<Wanted>, name, " has too many inputs");
  auto node = make_node<OwnBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  node->saved.reserve(saved.size());
  for (const at::Tensor& tensor : saved) node->saved.emplace_back(tensor, /*is_output=*/false);
  node->name_in_graph = name;
  node->derivative = std::move(derivative);
  torch::autograd::set_history(result, node);
  return result;
}

at::Tensor with_derivative(const at::Tensor& input, at::Tensor result, const variable_list& saved, const char* name,
                           std::function<at::Tensor(const at::Tensor&, const variable_list&)> derivative) {
  return with_derivative(
      c10::ArrayRef<at::Tensor>(input), std::move(result), saved, name,
      [of_input = std::move(derivative)](const at::Tensor& grad, const variable_list& saved_tensors, const Wanted&) {
        return variable_list{of_input(grad, saved_tensors)};
      });
}

void with_derivative_of_all(const at::Tensor& input, const std::vector<at::Tensor>& results, const char* name,
                            std::function<at::Tensor(const variable_list& grads)> derivative) {
  for (const at::Tensor& result : results) check_tangents(input, result, name);
  auto node = make_node<BackwardOfAll>();
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  node->name_in_graph = name;
  node->derivative = std::move(derivative);
  for (const at::Tensor& result : results) torch::autograd::set_history(result, node);
}

bool has_tangent(const at::Tensor& tensor) { return tensor.defined() && tensor._fw_grad(/*level=*/0).defined(); }

void carry_tangent(const at::Tensor& input, const at::Tensor& result,
                   const std::function<at::Tensor(const at::Tensor& tangent)>& function) {
  if (const at::Tensor tangent = input._fw_grad(/*level=*/0); tangent.defined())
    result._set_fw_grad(function(tangent), /*level=*/0, /*is_inplace_op=*/false);
}

}  // namespace shardwise
