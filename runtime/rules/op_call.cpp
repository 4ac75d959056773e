#include "runtime/rules/op_call.h"

#include "runtime/rules/op_sample.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/EmptyTensor.h>

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
    if (value.isTensorList())
      value.toTensorList().set(operand.index, meta_like(*operand.spec));
    else if (value.isOptionalTensorList())
      value.toOptionalTensorList().set(operand.index, meta_like(*operand.spec));
    else
      value = meta_like(*operand.spec);
  }
  return stack;
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

// The sample comes first: with Python loaded most of torch's meta kernels are Python, a hundred times its cost.
bool infer_outputs(OpCall& call) {
  if (infer_from_sample(call)) return true;
  call.outputs.clear();
  torch::jit::Stack stack = meta_args(call);
  try {
    BelowAutograd guard;
    call.op.handle.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception&) {
    if (call.op.name.starts_with("aten::")) throw;
    return false;  // other libraries may register a meta kernel that only says that there is none
  }
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) call.outputs.push_back(describe(value.toTensor()));
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) call.outputs.push_back(describe(tensor));
  }
  return true;
}

}  // namespace shardwise
