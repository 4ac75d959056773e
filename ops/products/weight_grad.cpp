#include "ops/products/weight_grad.h"

#include "ops/families.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"

#include <ATen/ops/matmul.h>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& tensor) { return tensor.dim() == 1 ? tensor.unsqueeze(0) : tensor.flatten(0, -2); }

at::Tensor compute_weight_grad(const at::Tensor& grad, const at::Tensor& input) {
  return rows_of(grad).t().mm(rows_of(input));
}

at::Tensor differentiable(const at::Tensor& grad, const at::Tensor& input) {
  const at::Tensor result = below_derivatives([&] { return weight_grad(grad, input); });
  return with_derivative({grad, input}, result, {grad, input}, "LinearWeightGradBackward",
                         [](const at::Tensor& outer, const variable_list& saved, const Wanted& wanted) {
                           variable_list grads(2);
                           if (wanted[0]) grads[0] = saved[1].conj_physical().matmul(outer.mT());
                           if (wanted[1]) grads[1] = saved[0].conj_physical().matmul(outer);
                           return grads;
                         });
}

}  // namespace

at::Tensor weight_grad(const at::Tensor& grad, const at::Tensor& input) {
  static const auto op = operator_of<at::Tensor(const at::Tensor&, const at::Tensor&)>("shardwise::linear_weight_grad");
  return op.call(grad, input);
}

void register_weight_grad(RuleTable& table) {
  define_operator("linear_weight_grad(Tensor grad, Tensor input) -> Tensor",
                  {.compute = &compute_weight_grad, .derivative = &differentiable, .traced = &compute_weight_grad});
  table.add("shardwise::linear_weight_grad", Rule("…n,…k->nk").multilinear());
}

}  // namespace shardwise
