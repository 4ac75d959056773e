#include "runtime/rules/op_call.h"

#include "runtime/comm/tracing.h"
#include "runtime/rules/op_sample.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/meta_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/ones.h>

namespace shardwise {
namespace {

DenseOutput describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {Dims(tensor.sizes()), Dims(tensor.strides()), tensor.scalar_type()};
}

/// The results of the call, lists flattened, on meta tensors of the global shapes. Throws: the operator's errors for these shapes and scalars.
std::vector<at::Tensor> run_on_meta(const OpCall& call) {
  const OutsideTracers outside;
  const ShapesAlone uncounted;
  const auto meta_like = [&](size_t operand) {
    const Spec& spec = *call.operands[operand].spec;
    return at::Tensor(at::detail::empty_strided_meta(spec.sizes(), spec.strides(), spec.dtype()));
  };
  return results_with(call, meta_like, c10::Device(c10::kMeta));
}

}  // namespace

std::vector<at::Tensor> results_with(const OpCall& call, const std::function<at::Tensor(size_t)>& stand_in,
                                     std::optional<c10::Device> device) {
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  for (c10::IValue& value : stack) {
    if (device && value.isDevice()) value = *device;
    if (value.isTensorList()) value = value.toTensorList().copy();
    if (value.isOptionalTensorList()) value = value.toOptionalTensorList().copy();
  }
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    c10::IValue& value = stack[operand.arg];
    if (!operand.spec) {
      if (!device && value.isTensor() && value.toTensor().is_meta())  // next to samples, which have values
        value = at::ones({}, value.toTensor().options().device(c10::kCPU));
      continue;
    }
    if (value.isTensorList())
      value.toTensorList().set(operand.index, stand_in(i));
    else if (value.isOptionalTensorList())
      value.toOptionalTensorList().set(operand.index, stand_in(i));
    else
      value = stand_in(i);
  }
  {
    const BelowAutograd guard;
    call.op.handle.callBoxed(&stack);
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
  }
  return results;
}

int OpCall::operand_at(size_t arg) const {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].arg == arg) return static_cast<int>(i);
  return -1;
}

// Tries the sample first: with Python loaded, most of torch's meta kernels are in Python and cost a hundred times as much.
bool infer_outputs(OpCall& call) {
  if (infer_from_sample(call)) return true;
  call.outputs.clear();
  std::vector<at::Tensor> results;
  try {
    results = run_on_meta(call);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception&) {
    if (call.op.name.starts_with("aten::")) throw;
    return false;  // other libraries' meta kernels may only raise that there is none
  }
  for (const at::Tensor& tensor : results) call.outputs.push_back(describe(tensor));
  return true;
}

int64_t offset_of_view(const OpCall& call) {
  try {
    const std::vector<at::Tensor> results = run_on_meta(call);
    return results.size() == 1 && call.op.n_returns() == 1 ? results[0].storage_offset() : 0;
  } catch (const c10::NotImplementedError&) {
    return 0;  // no meta kernel: outputs come from a sample only
  }
}

}  // namespace shardwise
