#include "runtime/op_call.h"

#include "runtime/below.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/zeros.h>

namespace shardwise {
namespace {

at::Tensor meta_like(const Spec& spec) {
  return at::detail::empty_strided_meta(spec.sizes(), spec.strides(), spec.dtype());
}

/// The arguments with every distributed operand and every device turned meta.
torch::jit::Stack meta_args(const OpCall& call) {
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  for (c10::IValue& value : stack) {
    if (value.isDevice()) value = c10::Device(c10::kMeta);
    if (value.isTensorList()) value = value.toTensorList().copy();
    if (value.isOptionalTensorList()) value = value.toOptionalTensorList().copy();
  }
  for (const Operand& operand : call.operands) {
    if (!operand.spec) continue;
    c10::IValue& value = stack[operand.arg];
    if (value.isTensorList()) value.toTensorList().set(operand.index, meta_like(*operand.spec));
    else if (value.isOptionalTensorList()) value.toOptionalTensorList().set(operand.index, meta_like(*operand.spec));
    else value = meta_like(*operand.spec);
  }
  return stack;
}

/// The global sizes with 0 for every extent but 1: they broadcast alike and hold nothing to compute.
at::Tensor empty_example(const Spec& spec) {
  Dims sizes;
  for (int64_t size : spec.sizes()) sizes.push_back(size == 1 ? 1 : 0);
  return at::zeros(sizes, spec.dtype());
}

/// The strides that elementwise operators give: those of the first operand of the result's sizes, if these leave no gaps.
Dims elementwise_strides(const OpCall& call, c10::IntArrayRef sizes) {
  for (const Operand& operand : call.operands)
    if (operand.spec && operand.sizes == sizes) return dense_strides(sizes, operand.spec->strides());
  return row_major_strides(sizes);
}

DenseOutput describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {Dims(tensor.sizes()), Dims(tensor.strides()), tensor.scalar_type()};
}

}  // namespace

int OpCall::operand_at(size_t arg) const {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].arg == arg) return static_cast<int>(i);
  return -1;
}

bool infer_outputs(OpCall& call) {
  torch::jit::Stack stack = meta_args(call);
  try {
    BelowGuard guard;
    call.op.handle.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) call.outputs.push_back(describe(value.toTensor()));
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) call.outputs.push_back(describe(tensor));
  }
  return true;
}

bool infer_elementwise_outputs(OpCall& call) {
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  Dims sizes;
  for (const Operand& operand : call.operands) {
    if (!stack[operand.arg].isTensor()) return false;
    sizes = at::infer_size_dimvector(sizes, operand.sizes);
    if (operand.spec) stack[operand.arg] = empty_example(*operand.spec);
  }
  {
    BelowGuard guard;
    call.op.handle.callBoxed(&stack);
  }
  for (const c10::IValue& value : stack)
    call.outputs.push_back({sizes, elementwise_strides(call, sizes), value.toTensor().scalar_type()});
  return true;
}

}  // namespace shardwise
