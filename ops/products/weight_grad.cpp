#include "ops/products/weight_grad.h"

#include "ops/families.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/matmul.h>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

at::Tensor compute_weight_grad(const at::Tensor& grad, const at::Tensor& input) {
  const int64_t n_rows = c10::multiply_integers(grad.sizes().slice(0, grad.dim() - 1));
  return grad.reshape({n_rows, grad.size(-1)}).t().mm(input.reshape({n_rows, input.size(-1)}));
}

at::Tensor differentiable(const at::Tensor& grad, const at::Tensor& input) {
  const at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return weight_grad(grad, input);
  }();
  return with_derivative({grad, input}, result, {grad, input}, "LinearWeightGradBackward",
                         [](const at::Tensor& outer, const variable_list& saved) {
                           const at::Tensor &of_grad = saved[0], &of_input = saved[1];
                           return variable_list{of_input.conj_physical().matmul(outer.mT()),
                                                of_grad.conj_physical().matmul(outer)};
                         });
}

void describe_weight_grad(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef grad = call.operands[0].sizes, input = call.operands[1].sizes;
  Axes batch;
  for (size_t dim = 0; dim + 1 < grad.size(); ++dim) batch.push_back({signature.add_factor(grad[dim])});
  const Axis row{signature.add_factor(grad.back())}, column{signature.add_factor(input.back())};
  signature.inputs = {batch, batch};
  signature.inputs[0].push_back(row);
  signature.inputs[1].push_back(column);
  signature.outputs = {{row, column}};
}

}  // namespace

at::Tensor weight_grad(const at::Tensor& grad, const at::Tensor& input) {
  static const auto op = operator_of<at::Tensor(const at::Tensor&, const at::Tensor&)>("shardwise::linear_weight_grad");
  return op.call(grad, input);
}

void register_weight_grad(RuleTable& table) {
  const auto compute = [] { return torch::CppFunction(&compute_weight_grad); };
  define_operator(
      "linear_weight_grad(Tensor grad, Tensor input) -> Tensor",
      {.compute = compute, .derivative = [] { return torch::CppFunction(&differentiable); }, .traced = compute});
  table.add("shardwise::linear_weight_grad", Rule("…n,…k->nk", describe_weight_grad).multilinear());
}

}  // namespace shardwise
