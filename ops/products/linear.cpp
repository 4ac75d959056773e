// ops/products/linear.cpp: aten::linear, with a rule of its own so that no batch dim is flattened, and its gradients.
#include "ops/families.h"
#include "ops/products/weight_grad.h"
#include "ops/support/axes.h"
#include "ops/support/kernels.h"

#include <ATen/ops/matmul.h>

#include <array>
#include <numeric>

namespace shardwise {
namespace {

/// "…k,nk,n->…n"; a weight of one dim has no n.
void describe_linear(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef input = call.operands[0].sizes, weight = call.operands[1].sizes;
  TORCH_CHECK(!input.empty() && !weight.empty());  // torch says so
  const Axes batch = add_axes(signature, input.slice(0, input.size() - 1));
  const Axis contracted{signature.add_factor(input.back())};
  Axes columns;
  if (weight.size() > 1) columns.push_back({signature.add_factor(weight[0])});

  signature.inputs = {batch, columns};
  signature.inputs[0].push_back(contracted);
  signature.inputs[1].push_back(contracted);
  signature.outputs = {batch};
  signature.outputs[0].append(columns.begin(), columns.end());
  if (call.operands.size() > 2) {
    Dims result(input.begin(), input.end() - 1);
    if (weight.size() > 1) result.push_back(weight[0]);
    signature.inputs.push_back(broadcast_axes(call.operands[2].sizes, result, signature.outputs[0]));
    signature.additive = {2};
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward(const at::Tensor& input, const at::Tensor& grad,
                                                               const at::Tensor& weight, std::array<bool, 3> mask) {
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
  if (!grad.defined()) return result;
  const bool is_vector = weight.dim() == 1;
  const at::Tensor rows = is_vector ? weight.unsqueeze(0) : weight;
  const at::Tensor grads = is_vector ? grad.unsqueeze(-1) : grad;
  if (mask[0]) std::get<0>(result) = grads.matmul(rows.conj_physical());
  if (mask[1]) std::get<1>(result) = weight_grad(grads, input.conj_physical()).reshape(weight.sizes());
  if (mask[2]) {
    Dims batch(grad.dim() - (is_vector ? 0 : 1));
    std::iota(batch.begin(), batch.end(), 0);
    std::get<2>(result) = batch.empty() ? grad : grad.sum(batch);
  }
  return result;
}

}  // namespace

void register_linear(RuleTable& table) {
  table.add("aten::linear", Rule("…k,nk,n->…n {k: sum}", describe_linear).multilinear().sampled());
  add_composition("linear_backward", &linear_backward);
  register_weight_grad(table);
}

}  // namespace shardwise
