#include "runtime/rules/op_sample.h"

#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

namespace shardwise {
namespace {

bool may_be_sharded(const Axis& axis, const Signature& signature) {
  return axis.factor >= 0 && !signature.factors[axis.factor].is_whole;
}

Dims sample_sizes(const Operand& operand, const Axes& axes, const Signature& signature) {
  Dims sizes(operand.sizes);
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (may_be_sharded(axes[dim], signature)) sizes[dim] = axes[dim].scale;
  return sizes;
}

/// One factor, one size; no factor, nothing to shard.
void check_sizes(const OpCall& call, const Signature& signature) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const c10::IntArrayRef sizes = call.operands[i].sizes;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      const Axis& axis = signature.inputs[i][dim];
      const int64_t expected = axis.factor < 0 ? 1 : signature.factors[axis.factor].size * axis.scale;
      TORCH_CHECK(sizes[dim] == expected,
                  fmt::format("[{}] dim {} of the tensor of shape [{}] does not match the other tensors.", call.op.name,
                              dim, fmt::join(sizes, ", ")));
    }
  }
}

/// Runs the operator with each distributed operand replaced by ones of its sample's sizes; nothing where that fails.
std::optional<std::vector<at::Tensor>> run(OpCall& call, const std::vector<Dims>& sizes) {
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    if (!operand.spec) continue;
    c10::IValue& value = stack[operand.arg];
    at::Tensor sample =
        at::ones(sizes[i], at::TensorOptions().dtype(operand.spec->dtype()).device(operand.spec->mesh()->device()));
    const OperandRole role = call.op.args[operand.arg].role;
    if (role == OperandRole::kPositions || role == OperandRole::kBatch) sample.zero_();  // the position that exists
    if (value.isTensorList()) {
      if (operand.index == 0) value = value.toTensorList().copy();
      value.toTensorList().set(operand.index, sample);
    } else {
      value = sample;
    }
  }
  try {
    BelowAutograd guard;
    call.op.handle.callBoxed(&stack);
  } catch (const c10::Error&) {
    call.refusal = std::current_exception();
    return std::nullopt;
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
  }
  return results;
}

/// Elementwise results are ordered in memory as the first operand of their sizes is; all others are row-major.
Dims strides_of(const OpCall& call, const Dims& sizes, bool is_elementwise) {
  is_elementwise &= !call.op.rule->is_row_major();
  for (const Operand& operand : call.operands)
    if (is_elementwise && operand.spec && operand.sizes == sizes) return dense_strides(sizes, operand.spec->strides());
  return row_major_strides(sizes);
}

void describe(OpCall& call, size_t i, const at::Tensor& sample, Dims sizes, bool is_elementwise) {
  if (sample.defined()) call.outputs[i] = {sizes, strides_of(call, sizes, is_elementwise), sample.scalar_type()};
}

/// Element by element of the lists: output `i` broadcasts what has index `i`.
bool infer_elements(OpCall& call) {
  std::vector<Dims> sizes;
  for (const Operand& operand : call.operands) sizes.emplace_back(operand.sizes.size(), 1);
  const auto results = run(call, sizes);
  if (!results) return false;
  call.outputs.resize(results->size());
  for (size_t i = 0; i < results->size(); ++i) {
    Dims together;
    for (const Operand& operand : call.operands)
      if (operand.index == i) together = at::infer_size_dimvector(together, operand.sizes);
    describe(call, i, (*results)[i], together, /*is_elementwise=*/true);
  }
  return true;
}

}  // namespace

bool infer_from_sample(OpCall& call) {
  const Rule* rule = call.op.rule;
  if (!rule || !rule->is_sampled() || rule->is_shape_only()) return false;
  if (rule->is_per_element()) return infer_elements(call);

  call.outputs.resize(call.op.n_returns());
  const Signature signature = rule->signature(call);
  check_sizes(call, signature);
  std::vector<Dims> sizes;
  for (size_t i = 0; i < call.operands.size(); ++i)
    sizes.push_back(sample_sizes(call.operands[i], signature.inputs[i], signature));
  const auto results = run(call, sizes);
  if (!results || results->size() != call.outputs.size()) return false;
  for (size_t i = 0; i < results->size(); ++i) {
    if (!(*results)[i].defined()) continue;
    Dims output((*results)[i].sizes());
    for (size_t dim = 0; dim < output.size(); ++dim)
      if (const Axis& axis = signature.outputs[i][dim]; may_be_sharded(axis, signature))
        output[dim] = signature.factors[axis.factor].size * axis.scale;
    describe(call, i, (*results)[i], output, signature.is_pointwise);
  }
  return true;
}

}  // namespace shardwise
