#include "runtime/rules/op_call.h"

#include "runtime/rules/meta_run.h"
#include "runtime/rules/op_sample.h"

namespace shardwise {
namespace {

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

// Tries the sample first: with Python loaded, most of torch's meta kernels are in Python and cost a hundred times as much.
bool infer_outputs(OpCall& call) {
  if (infer_from_sample(call)) return true;
  call.outputs.clear();
  torch::jit::Stack results;
  try {
    results = run_on_meta(call);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception&) {
    if (call.op.name.starts_with("aten::")) throw;
    return false;  // other libraries' meta kernels may only raise that there is none
  }
  for (const c10::IValue& value : results) {
    if (value.isTensor()) call.outputs.push_back(describe(value.toTensor()));
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) call.outputs.push_back(describe(tensor));
  }
  return true;
}

}  // namespace shardwise
