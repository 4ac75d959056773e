#include "runtime/dispatch/bound_call.h"

#include "runtime/dispatch/view_call.h"
#include "runtime/rules/rule.h"

#include <fmt/format.h>

namespace shardwise {

BoundCall::BoundCall(const OpInfo& info, torch::jit::Stack& values)
    : op(info), stack(values), first(values.size() - info.n_args()), key(info) {
  const Rule* rule = op.rule;
  const bool by_kind = rule && !rule->is_by_numbers();
  for (size_t i = 0; i < op.n_args(); ++i) {
    const c10::IValue& value = arg(i);
    if (value.isTensor()) {
      bind_tensor(value.toTensor(), i, 0);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const size_t n = value.toListRef().size();
      key.add_list(n);
      for (size_t j = 0; j < n; ++j)
        if (const c10::IValue& element = arg(i).toListRef()[j]; element.isTensor())
          bind_tensor(element.toTensor(), i, j);
        else
          key.add_absent();
    } else {
      key.add_scalar(value, by_kind && op.args[i].is_number);
    }
  }
  if (!writes.empty()) find_shared();
}

void BoundCall::find_shared() {
  for (size_t written = 0; written < operands.size(); ++written) {
    const BoundOperand& target = operands[written];
    if (!target.impl || !op.args[target.arg].is_written || !target.impl->known_memory() || is_traced(*target.impl))
      continue;
    const bool is_element = arg(target.arg).isTensorList();
    for (size_t read = 0; read < operands.size(); ++read) {
      const BoundOperand& other = operands[read];
      if (is_element && (other.index != target.index || !arg(other.arg).isTensorList())) continue;
      if (op.args[other.arg].is_written) continue;  // a copy would lose what is written to it
      if (share_memory(target.impl, other.impl)) shared.emplace_back(read, written);
    }
  }
}

void BoundCall::bind_tensor(const at::Tensor& tensor, size_t arg, size_t index) {
  auto* impl = maybe_dtensor(tensor);
  key.add_tensor(tensor, impl);
  if (!tensor.defined()) return;
  if (impl && op.args[arg].is_written) {
    if (impl->view_link()) written_views.push_back(tensor);
    if (impl->known_memory() || impl->owned_rows()) writes.push_back(impl->begin_write());
  }
  if (impl && impl->local_form()) formed = impl;
  if (impl && impl->holds_subclass()) subclass = impl;
  operands.push_back({impl, static_cast<uint32_t>(arg), static_cast<uint32_t>(index)});
}

const DTensorImpl* first_distributed(c10::ArrayRef<c10::IValue> args) {
  const DTensorImpl* first = nullptr;
  for_each_tensor(args, [&](const at::Tensor& tensor, size_t, size_t) {
    if (!first) first = maybe_dtensor(tensor);
  });
  return first;
}

void replace_tensor(c10::IValue& value, size_t index, const at::Tensor& tensor) {
  if (value.isTensor()) {
    value = tensor;
  } else if (value.isTensorList()) {
    auto list = value.toTensorList().copy();
    list.set(index, tensor);
    value = std::move(list);
  } else {
    auto list = value.toOptionalTensorList().copy();
    list.set(index, tensor);
    value = std::move(list);
  }
}

const DTensorImpl& BoundCall::leader() const {
  for (const BoundOperand& operand : operands)
    if (operand.impl) return *operand.impl;
  TORCH_INTERNAL_ASSERT(false, "[", op.name, "] reached Shardwise without a distributed tensor");
}

OpCall BoundCall::to_op_call() const {
  OpCall call{op, args(), {}, {}, is_in_backward()};
  for (const BoundOperand& operand : operands) {
    SpecPtr spec = operand.impl ? operand.impl->spec() : SpecPtr();
    const c10::IntArrayRef sizes = spec ? spec->sizes() : c10::IntArrayRef();
    call.operands.push_back({std::move(spec), sizes, operand.arg, operand.index, op.args[operand.arg].is_written});
  }
  return call;
}

}  // namespace shardwise
