#include "ops/embedding/first_order.h"

#include "ops/support/derivative.h"

#include <ATen/ops/empty.h>

namespace shardwise {

at::Tensor of_first_order(at::Tensor gradient, const std::string& error) {
  if (!gradient.defined()) return gradient;
  at::Tensor anything = at::empty({0});  // a node is made only for an input that requires a gradient
  anything.set_requires_grad(true);
  return with_derivative(anything, std::move(gradient), {}, "FirstOrderOnly",
                         [error](const at::Tensor&, const torch::autograd::variable_list&) -> at::Tensor {
                           TORCH_CHECK_NOT_IMPLEMENTED(false, error);
                         });
}

}  // namespace shardwise
