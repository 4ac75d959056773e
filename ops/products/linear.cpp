// ops/products/linear.cpp: aten::linear, with a rule of its own so that no batch dim is flattened, and its gradients.
#include "ops/families.h"
#include "ops/products/product_node.h"
#include "ops/products/weight_grad.h"
#include "ops/support/axes.h"
#include "ops/support/kernels.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <array>
#include <numeric>

namespace shardwise {
namespace {

/// "…k,nk,n->…n"; a weight of one dim has no n.
void describe_linear(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef input = call.operands[0].sizes, weight = call.operands[1].sizes;
  TORCH_CHECK(!input.empty() && !weight.empty());  // torch reports it
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

torch::autograd::variable_list linear_gradients(const at::Tensor& grad, const Factors& factors,
                                                std::array<bool, 3> mask) {
  const bool is_vector = factors.right_sizes.size() == 1;
  const at::Tensor grads = is_vector ? grad.unsqueeze(-1) : grad;
  torch::autograd::variable_list result(3);
  if (mask[0]) {
    const at::Tensor rows = is_vector ? factors.right.unsqueeze(0) : factors.right;
    result[0] = grads.matmul(rows.conj_physical());
  }
  if (mask[1]) result[1] = weight_grad(grads, factors.left.conj_physical()).reshape(factors.right_sizes);
  if (mask[2]) {
    Dims batch(grad.dim() - (is_vector ? 0 : 1));
    std::iota(batch.begin(), batch.end(), 0);
    result[2] = batch.empty() ? grad : grad.sum(batch);
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward(const at::Tensor& input, const at::Tensor& grad,
                                                               const at::Tensor& weight, std::array<bool, 3> mask) {
  if (!grad.defined()) return {};
  auto result = linear_gradients(grad, {input, weight, Dims(input.sizes()), Dims(weight.sizes())}, mask);
  return {std::move(result[0]), std::move(result[1]), std::move(result[2])};
}

/// torch's formula saves both factors, even those that no gradient needs.
at::Tensor differentiable_linear(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& given_bias) {
  const at::Tensor bias = given_bias.value_or(at::Tensor());
  if (have_tangents(input, weight, bias)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
    torch::jit::Stack stack{input, weight, given_bias};
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, stack);
    return stack[0].toTensor();
  }
  at::Tensor product = [&] {
    const at::AutoDispatchBelowAutograd guard;
    return at::linear(input, weight, given_bias);
  }();
  return with_product_node(std::move(product), "LinearBackward0", &linear_gradients, input, weight, bias);
}

}  // namespace

void register_linear(RuleTable& table) {
  table.add("aten::linear", Rule("…k,nk,n->…n {k: sum}", describe_linear).multilinear().sampled());
  aten_autograd_kernels().impl("linear", torch::CppFunction(&differentiable_linear));
  add_composition("linear_backward", &linear_backward);
  register_weight_grad(table);
}

}  // namespace shardwise
