#include "runtime/dispatch/planned_autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace shardwise {
namespace {

using c10::DispatchKey;

constexpr auto kKey = DispatchKey::AutocastIPU;  // torch has no kernels for it

#define SHARDWISE_NAME(name, ...) "aten::" #name,
const std::unordered_set<std::string> kLower{AT_FORALL_LOWER_PRECISION_FP(SHARDWISE_NAME)};
const std::unordered_set<std::string> kWithDtype{AT_FORALL_FP32_SET_OPT_DTYPE(SHARDWISE_NAME)};
const std::unordered_set<std::string> kWidest{AT_FORALL_PROMOTE(SHARDWISE_NAME) "aten::cat", "aten::stack",
                                              "aten::index_copy"};
#undef SHARDWISE_NAME

struct Planned {
  c10::DeviceType device_type = c10::DeviceType::CPU;
  std::unordered_map<c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> cast;  // parameters, and their casts
};
thread_local Planned planned;

bool is_eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_meta() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!is_eligible(tensor) || tensor.scalar_type() == dtype) return tensor;
  const bool is_kept = tensor.scalar_type() == at::kFloat && tensor.requires_grad() && tensor.is_leaf() &&
                       !tensor.is_view() && at::autocast::is_autocast_cache_enabled();
  if (!is_kept) return tensor.to(dtype);
  auto& [source, result] = planned.cast[tensor.unsafeGetTensorImpl()];
  if (!result.defined()) std::tie(source, result) = std::pair(tensor, tensor.to(dtype));
  return result;
}

at::Tensor to_lower(const at::Tensor& tensor) {
  return cast(tensor, at::autocast::get_autocast_dtype(planned.device_type));
}
at::Tensor to_float(const at::Tensor& tensor) { return cast(tensor, at::kFloat); }

/// Replaces the tensors among the arguments, also those in lists.
template <class Replace>
void replace_tensors(torch::jit::Stack& stack, size_t n_args, const Replace& replace) {
  for (auto value = stack.end() - static_cast<std::ptrdiff_t>(n_args); value != stack.end(); ++value) {
    if (value->isTensor()) {
      *value = replace(value->toTensor());
    } else if (value->isTensorList()) {
      c10::List<at::Tensor> replaced;
      for (const at::Tensor& each : value->toTensorVector()) replaced.push_back(replace(each));
      *value = std::move(replaced);
    }
  }
}

/// Whether autocast for the planned device casts the operator's arguments.
bool is_cast(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(at::autocast::get_autocast_dispatch_key_from_device_type(planned.device_type));
}

void cast_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const size_t n_args = schema.arguments().size();
  if (kLower.contains(name)) {
    replace_tensors(stack, n_args, to_lower);
  } else if (const auto dtype = schema.argumentIndexWithName("dtype"); dtype && kWithDtype.contains(name)) {
    const c10::IValue& first = torch::jit::peek(stack, 0, n_args);
    c10::IValue& given = torch::jit::peek(stack, *dtype, n_args);
    if (given.isNone() && is_eligible(first.toTensor())) given = static_cast<int64_t>(at::kFloat);
  } else if (kWidest.contains(name)) {
    bool has_float = false;
    const auto look = [&](const at::Tensor& each) {
      has_float |= is_eligible(each) && each.scalar_type() == at::kFloat;
      return each;
    };
    replace_tensors(stack, n_args, look);
    replace_tensors(stack, n_args, has_float ? to_float : to_lower);
  } else {
    replace_tensors(stack, n_args, to_float);
  }
}

void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (is_cast(op)) {
    const c10::impl::ExcludeDispatchKeyGuard once(kKey);  // operators that this one calls cast nothing
    cast_arguments(op, *stack);
    return op.callBoxed(stack);
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

}  // namespace

void plan_autocast(std::optional<c10::DeviceType> device_type) {
  planned.cast.clear();
  if (device_type) planned.device_type = *device_type;
  c10::impl::tls_set_dispatch_key_included(kKey, device_type.has_value());
  c10::impl::tls_set_dispatch_key_excluded(kKey, !device_type);  // as threads begin
}

TORCH_LIBRARY_IMPL(_, AutocastIPU, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&call>()); }

}  // namespace shardwise
