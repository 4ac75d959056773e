#include "runtime/dispatch/plain_operand.h"

#include "runtime/api/dtensor.h"
#include "runtime/api/gradients.h"
#include "runtime/dispatch/prepare_arguments.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace shardwise {
namespace {

using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;

/// Gives a tensor the gradients of its kind: plain if `mesh` is null, else distributed on it.
class KeepKind final : public torch::autograd::FunctionPreHook {
 public:
  KeepKind(uint32_t output, MeshPtr mesh) : output_(output), mesh_(std::move(mesh)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    torch::autograd::variable_list results = grads;
    if (at::Tensor& grad = results[output_]; grad.defined() && is_dtensor(grad) == !mesh_)
      grad = mesh_ ? replica_of(grad, mesh_) : full_tensor(grad);
    return results;
  }
  static bool is_in(const Hooks& hooks, uint32_t output) {
    return std::ranges::any_of(hooks, [&](const auto& hook) {
      const auto* own = dynamic_cast<const KeepKind*>(hook.get());
      return own && own->output_ == output;
    });
  }

 private:
  uint32_t output_;
  MeshPtr mesh_;
};

}  // namespace

void keep_gradient_kind(const at::Tensor& tensor) {
  const auto* impl = maybe_dtensor(tensor);
  const MeshPtr mesh = impl ? impl->spec()->mesh() : nullptr;
  if (const auto node = tensor.grad_fn()) {
    const auto output = static_cast<uint32_t>(tensor.output_nr());
    if (!KeepKind::is_in(node->tensor_pre_hooks(), output))
      node->add_tensor_pre_hook(std::make_unique<KeepKind>(output, mesh));
  } else if (auto& hooks = torch::autograd::impl::hooks(tensor); !KeepKind::is_in(hooks, 0)) {
    hooks.insert(hooks.begin(),
                 std::make_unique<KeepKind>(0, mesh));  // before the leaf's layout and the program's hooks
  }
}

void keep_distributed(const at::Tensor& operand) {
  auto* const impl = operand.defined() ? maybe_dtensor(operand) : nullptr;
  if (!impl || !records(operand)) return;
  prepare_operand(*impl);  // before: the hook for the layout takes a distributed gradient
  keep_gradient_kind(operand);
}

}  // namespace shardwise
