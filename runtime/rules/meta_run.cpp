#include "runtime/rules/meta_run.h"

#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/EmptyTensor.h>

namespace shardwise {
namespace {

at::Tensor meta_like(const Spec& spec) {
  return at::detail::empty_strided_meta(spec.sizes(), spec.strides(), spec.dtype());
}

/// The arguments with every distributed operand and every device replaced by meta.
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

}  // namespace

torch::jit::Stack run_on_meta(const OpCall& call) {
  const OutsideTracers outside;
  torch::jit::Stack stack = meta_args(call);
  const BelowAutograd guard;
  call.op.handle.callBoxed(&stack);
  return stack;
}

int64_t offset_of_view(const OpCall& call) {
  try {
    const torch::jit::Stack results = run_on_meta(call);
    return results.size() == 1 && results[0].isTensor() ? results[0].toTensor().storage_offset() : 0;
  } catch (const c10::NotImplementedError&) {
    return 0;  // no meta kernel: outputs come from a sample only
  }
}

}  // namespace shardwise
