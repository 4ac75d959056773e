#include "tests/support/accelerator/boxed_call.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace shardwise::accelerator {
namespace {

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

/// `visit(tensor)` for each defined tensor in `value`.
template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  const auto visit_defined = [&](const at::Tensor& tensor) {
    if (tensor.defined()) visit(tensor);
  };
  if (value.isTensor()) {
    visit_defined(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit_defined(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) visit_defined(*tensor);
  }
}

/// `value` with `change(tensor)` in the place of each defined tensor.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  const auto change_defined = [&](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
  if (value.isTensor()) return change_defined(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(change_defined(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(change_defined(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

/// A number that promotes types as a Python number does.
at::Tensor keep_wrapped(at::Tensor copy, const at::Tensor& of) {
  if (of.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

at::Tensor as_meta(const at::Tensor& tensor) {
  const auto options = tensor.options().device(at::kMeta);
  return keep_wrapped(at::empty_strided(tensor.sizes(), tensor.strides(), options), tensor);
}

}  // namespace

at::Tensor on_host(const at::Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  at::Tensor result = at::from_blob(host_address(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  return result;
}

BoundTensors::BoundTensors(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
    : op_(op), args_(stack.end() - static_cast<int64_t>(op.schema().arguments().size()), stack.end()), device_(kType) {
  for (const c10::IValue& arg : args_)
    each_tensor(arg, [&](const at::Tensor& tensor) {
      if (tensor.is_cpu() && tensor.dim() == 0) return;
      if (!device_.has_index()) device_ = tensor.device();
      TORCH_CHECK(tensor.device() == device_ && device_.type() == kType, "[", name(),
                  "] Expected all tensors to be on the same device, but found at least two devices, ", device_, " and ",
                  tensor.device(), "!");
    });
  TORCH_CHECK_NOT_IMPLEMENTED(device_.has_index(), "[", name(), "] the accelerator does not know this operator.");
}

std::vector<Access> BoundTensors::accesses() const {
  std::vector<Access> result;
  for (size_t i = 0; i < args_.size(); ++i)
    each_tensor(args_[i], [&](const at::Tensor& tensor) {
      if (tensor.is_cpu()) return;
      const bool is_write = is_written(op_.schema().arguments()[i]);
      if (!is_write || !op_.schema().arguments()[i].is_out()) result.push_back(reads(tensor));
      if (is_write) result.push_back(writes(tensor));
    });
  return result;
}

torch::jit::Stack BoundTensors::changed(const Change& change, c10::DeviceType device) const {
  torch::jit::Stack result;
  for (size_t i = 0; i < args_.size(); ++i) {
    const c10::Argument& argument = op_.schema().arguments()[i];
    if (args_[i].isDevice())
      result.emplace_back(c10::Device(device));
    else
      result.push_back(with_tensors(args_[i], [&](const at::Tensor& tensor) { return change(tensor, argument); }));
  }
  return result;
}

std::optional<torch::jit::Stack> BoundTensors::infer() const {
  if (!op_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return std::nullopt;
  for (const c10::Argument& result : op_.schema().returns())
    if (result.type()->kind() != c10::TypeKind::TensorType && result.type()->kind() != c10::TypeKind::ListType)
      return std::nullopt;
  torch::jit::Stack stack =
      changed([](const at::Tensor& tensor, const c10::Argument&) { return as_meta(tensor); }, at::kMeta);
  try {
    op_.callBoxed(&stack);
  } catch (const c10::Error&) {
    return std::nullopt;  // the CPU's kernel will say what is wrong, if anything is
  }
  return stack;
}

torch::jit::Stack BoundTensors::host_args(bool with_new_outs) const {
  const auto change = [&](const at::Tensor& tensor, const c10::Argument& argument) {
    if (with_new_outs && argument.is_out()) return at::empty({0}, tensor.options().device(at::kCPU));
    return tensor.is_cpu() ? keep_wrapped(tensor.clone(), tensor) : keep_wrapped(on_host(tensor), tensor);
  };
  return changed(change, at::kCPU);
}

at::Tensor BoundTensors::given_for(const c10::Argument& result) const {
  if (!result.alias_info()) return {};
  TORCH_CHECK_NOT_IMPLEMENTED(result.alias_info()->isWrite(), "[", name(),
                              "] the accelerator does not know this view of a tensor.");
  for (size_t i = 0; i < args_.size(); ++i) {
    const auto* const alias = op_.schema().arguments()[i].alias_info();
    if (alias && alias->beforeSets() == result.alias_info()->beforeSets()) return args_[i].toTensor();
  }
  TORCH_INTERNAL_ASSERT(false, name(), " returns what it was not given");
}

void BoundTensors::finish(const torch::jit::Stack& values, torch::jit::Stack* stack, const Place& place) const {
  torch::jit::Stack results;
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor given = given_for(op_.schema().returns()[i]);
    results.push_back(with_tensors(values[i], [&](const at::Tensor& value) {
      const bool is_there =
          given.defined() && value.is_cpu() && value.const_data_ptr() == host_address(given.const_data_ptr());
      return is_there ? given : place(value, given);
    }));
  }
  *stack = std::move(results);
}

torch::jit::Stack run_on_host(const c10::OperatorHandle& op, const torch::jit::Stack& args) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack = args;
  op.callBoxed(&stack);
  return stack;
}

void copy_fresh(const c10::OperatorHandle& op, const torch::jit::Stack& results,
                const std::vector<at::Tensor>& places) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  size_t next = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (op.schema().returns()[i].alias_info()) continue;
    each_tensor(results[i], [&](const at::Tensor& value) { places.at(next++).copy_(value); });
  }
}

}  // namespace shardwise::accelerator
