#include "runtime/dispatch/plain_operand.h"

#include "runtime/api/dtensor.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace shardwise {
namespace {

using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;

class MakePlain final : public torch::autograd::FunctionPreHook {
 public:
  explicit MakePlain(uint32_t output) : output_(output) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    torch::autograd::variable_list results = grads;
    at::Tensor& grad = results[output_];
    if (grad.defined() && is_dtensor(grad)) grad = full_tensor(grad);
    return results;
  }
  static bool is_in(const Hooks& hooks, uint32_t output) {
    return std::ranges::any_of(hooks, [&](const auto& hook) {
      const auto* own = dynamic_cast<const MakePlain*>(hook.get());
      return own && own->output_ == output;
    });
  }

 private:
  uint32_t output_;
};

}  // namespace

void keep_gradient_plain(const at::Tensor& plain) {
  if (const auto node = plain.grad_fn()) {
    const auto output = static_cast<uint32_t>(plain.output_nr());
    if (!MakePlain::is_in(node->tensor_pre_hooks(), output))
      node->add_tensor_pre_hook(std::make_unique<MakePlain>(output));
  } else if (!MakePlain::is_in(torch::autograd::impl::hooks(plain), 0)) {
    torch::autograd::impl::hooks(plain).push_back(std::make_unique<MakePlain>(0));  // add_hook() is for the first
  }
}

}  // namespace shardwise
