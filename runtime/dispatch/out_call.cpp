#include "runtime/dispatch/out_call.h"

#include "runtime/api/dtensor.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/bound_call.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/op_info.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

namespace shardwise {
namespace {

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

/// True if `functional` has the arguments of `out` except for the out= ones, and writes nothing.
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

/// The arguments with each tensor replaced by one of one element (0 if it may be an index), and each out= tensor by an empty one of
/// `dtypes`.
torch::jit::Stack sample_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args,
                            const std::vector<at::ScalarType>& dtypes) {
  const auto one_element = [](const at::Tensor& tensor, at::ScalarType dtype) {
    const int64_t value = at::isIntegralType(dtype, /*includeBool=*/false) ? 0 : 1;
    return at::full(Dims(tensor.dim(), 1), value, at::TensorOptions().dtype(dtype).device(tensor.device()));
  };
  torch::jit::Stack stack(args.begin(), args.end());
  size_t n_outs = 0;
  for (size_t i = 0; i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor tensor = value.toTensor();
      value = is_out(op.handle.schema().arguments()[i])
                  ? at::full({0}, 0, at::TensorOptions().dtype(dtypes[n_outs++]).device(tensor.device()))
                  : one_element(tensor, tensor.scalar_type());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = c10::fmap(
          value.toTensorVector(), [&](const at::Tensor& tensor) { return one_element(tensor, tensor.scalar_type()); });
      value = tensors;
    }
  }
  return stack;
}

/// Throws: torch's error about the dtypes of the out= tensors, found with a sample call. Does nothing if torch refuses the sample even with
/// the results' dtypes, or if indices are given in a list.
void check_dtypes(const OpInfo& op, c10::ArrayRef<c10::IValue> args, const std::vector<at::ScalarType>& of_results,
                  const std::vector<at::ScalarType>& of_outs) {
  if (of_results == of_outs || is_tracing()) return;
  if (std::ranges::any_of(args, [](const c10::IValue& value) { return value.isOptionalTensorList(); })) return;
  try {
    torch::jit::Stack stack = sample_of(op, args, of_results);
    op.handle.callBoxed(&stack);
  } catch (const std::exception&) {
    return;
  }
  torch::jit::Stack stack = sample_of(op, args, of_outs);
  op.handle.callBoxed(&stack);
}

/// Sums and products are computed in the dtype of `out`, as torch does. An integer input keeps its dtype for mean, which then refuses it.
void take_dtype_of(const at::Tensor& out, const c10::OperatorHandle& functional, torch::jit::Stack& inputs) {
  static const std::set<std::string_view> names = {"aten::sum",  "aten::nansum", "aten::mean",
                                                   "aten::prod", "aten::cumsum", "aten::cumprod"};
  const auto dtype = functional.schema().argumentIndexWithName("dtype");
  if (!dtype || !names.contains(functional.schema().name())) return;
  const bool has_no_mean = at::isIntegralType(inputs[0].toTensor().scalar_type(), /*includeBool=*/true);
  if (has_no_mean && functional.schema().name() == "aten::mean") return;
  if (inputs[*dtype].isNone()) inputs[*dtype] = out.scalar_type();
}

void give(const at::Tensor& out, const at::Tensor& result) {
  if (!result.defined()) return;
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  if (!is_dtensor(out)) {
    at::native::resize_output(out, result.sizes());
    out.copy_(full_tensor(result));
  } else if (at::native::resize_output_check(out, result.sizes())) {
    out.set_(result.to(out.scalar_type()));
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
  const DTensorImpl* const distributed = first_distributed(torch::jit::last(stack, op.n_args()));
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
  if (outs.size() == 1) take_dtype_of(outs[0], functional_, inputs);
  functional_.callBoxed(&inputs);
  std::vector<at::ScalarType> of_results, of_outs;
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& result = inputs[i].toTensor();
    of_outs.push_back(outs[i].scalar_type());
    of_results.push_back(result.defined() ? result.scalar_type() : of_outs.back());
  }
  check_dtypes(op, torch::jit::last(stack, op.n_args()), of_results, of_outs);
  for (size_t i = 0; i < outs.size(); ++i) give(outs[i], inputs[i].toTensor());
  stack->resize(first);
  for (const at::Tensor& out : outs) stack->emplace_back(out);
}

}  // namespace shardwise
