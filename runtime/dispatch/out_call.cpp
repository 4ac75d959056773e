#include "runtime/dispatch/out_call.h"

#include "runtime/api/dtensor.h"
#include "runtime/dispatch/bound_call.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/aten_operators.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/native/Resize.h>

namespace shardwise {
namespace {

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

/// True where `functional` takes what `out` takes, but for the out= arguments, and writes nothing.
bool is_form_of(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  size_t next = 0;
  for (const c10::Argument& argument : out.arguments()) {
    if (is_out(argument)) continue;
    if (next == functional.arguments().size()) return false;
    const c10::Argument& other = functional.arguments()[next++];
    if (other.name() != argument.name() || *other.real_type() != *argument.real_type() || other.alias_info())
      return false;
  }
  return next == functional.arguments().size() && functional.returns().size() == out.returns().size();
}

void give(const at::Tensor& out, const at::Tensor& result) {
  if (!result.defined()) return;
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  if (!is_dtensor(out)) {
    at::native::resize_output(out, result.sizes());
    out.copy_(full_tensor(result));
  } else if (at::native::resize_output_check(out, result.sizes())) {
    maybe_dtensor(out)->shallow_copy_from(result.to(out.scalar_type()).getIntrusivePtr());
  } else {
    out.copy_(result);
  }
}

}  // namespace

std::unique_ptr<OutCall> OutCall::find(const OpInfo& op) {
  const auto& schema = op.handle.schema();
  if (schema.arguments().empty() || !is_out(schema.arguments().back())) return nullptr;
  for (const auto& result : schema.returns())
    if (result.type()->kind() != c10::TypeKind::TensorType) return nullptr;
  for (const AtenOperator& candidate : overloads_of(schema.name()))
    if (is_form_of(candidate.handle.schema(), schema)) return std::unique_ptr<OutCall>(new OutCall(candidate.handle));
  return nullptr;
}

void OutCall::run(const OpInfo& op, torch::jit::Stack* stack) const {
  const BelowAutograd guard;
  const size_t first = stack->size() - op.n_args();
  const DTensorImpl* const distributed =
      first_distributed(c10::ArrayRef<c10::IValue>(stack->data() + first, op.n_args()));
  TORCH_INTERNAL_ASSERT(distributed, "[", op.name, "] reached Shardwise without a distributed tensor");
  torch::jit::Stack inputs;
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < op.n_args(); ++i)
    if (is_out(op.handle.schema().arguments()[i])) {
      outs.push_back((*stack)[first + i].toTensor());
      if (!is_dtensor(outs.back())) check_plain(op, outs.back(), i, distributed->spec()->mesh());
    } else {
      inputs.push_back((*stack)[first + i]);
    }
  functional_.callBoxed(&inputs);
  for (size_t i = 0; i < outs.size(); ++i) give(outs[i], inputs[i].toTensor());
  stack->resize(first);
  for (const at::Tensor& out : outs) stack->emplace_back(out);
}

}  // namespace shardwise
