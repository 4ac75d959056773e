#include "runtime/dispatch/bound_call.h"

#include "runtime/api/gradients.h"
#include "runtime/dispatch/copied_view.h"
#include "runtime/dispatch/gradient_layout.h"
#include "runtime/dispatch/operand_move.h"
#include "runtime/dispatch/plain_gradient.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/write_count.h"
#include "runtime/tensor/write_watch.h"

#include <fmt/format.h>

namespace shardwise {

void check_writable(const std::string& op, const Spec& spec) {
  for (int64_t dim = 0; dim < spec.dim(); ++dim)
    TORCH_CHECK(spec.sizes()[dim] < 2 || spec.strides()[dim] != 0,
                fmt::format("[{}] cannot write to an expanded tensor of shape [{}]: along dim {} its elements share "
                            "memory. Write to a clone() of it.",
                            op, fmt::join(spec.sizes(), ", "), dim));
}

void note_written(DTensorImpl& impl) {
  if (impl.is_inference()) [[unlikely]]
    count_inference_write();
  WriteWatch::note_write(impl);
}

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
}

void BoundCall::bind_tensor(const at::Tensor& tensor, size_t arg, size_t index) {
  if (auto* impl = maybe_dtensor(tensor)) {
    if (impl->view_link()) [[unlikely]] {
      impl->shards();  // refreshed if stale, on all ranks alike: ranks without pieces would not do it later
      if (op.args[arg].is_written) written_views.push_back(tensor);
    }
    if (wants_gradient_layout(*impl)) [[unlikely]]
      lay_out_gradient(*impl);
    if (op.args[arg].is_written) {
      check_writable(op.name, *impl->spec());
      note_written(*impl);
    } else if (!impl->is_ready() && !op.is_view) {
      if (const at::Tensor replica = known_replica(*impl); replica.defined()) {
        replace_tensor(stack[first + arg], index, replica);
        impl = maybe_dtensor(replica);
      }
    }
    key.add_tensor(tensor, impl);
    if (impl->local_kind() != LocalKind::kTensor) in_pieces = impl;
    operands.push_back({impl, static_cast<uint32_t>(arg), static_cast<uint32_t>(index)});
    return;
  }
  if (!tensor.defined()) return key.add_tensor(tensor, nullptr);
  // Plain scalars in a written list are the step counts of a fused optimizer, whose learning rate may be of any shape.
  const bool is_number = tensor.dim() == 0 || is_rate(tensor, arg);
  if (!is_number || leads_element(arg) || (op.args[arg].is_written && stack[first + arg].isTensor()))
    return bind_tensor(replicate(tensor, arg, index), arg, index);
  if (records(tensor)) keep_gradient_plain(tensor);
  key.add_tensor(tensor, nullptr);
  operands.push_back({nullptr, static_cast<uint32_t>(arg), static_cast<uint32_t>(index)});
}

const DTensorImpl* first_distributed(c10::ArrayRef<c10::IValue> args) {
  for (const c10::IValue& value : args) {
    if (value.isTensor())
      if (const auto* impl = maybe_dtensor(value.toTensor())) return impl;
    if (value.isTensorList() || value.isOptionalTensorList())
      for (const c10::IValue& element : value.toListRef())
        if (element.isTensor())
          if (const auto* impl = maybe_dtensor(element.toTensor())) return impl;
  }
  return nullptr;
}

at::Tensor BoundCall::replicate(const at::Tensor& plain, size_t arg, size_t index) {
  const DTensorImpl* const neighbour = first_distributed(args());
  TORCH_INTERNAL_ASSERT(neighbour, "[", op.name, "] reached Shardwise without a distributed tensor");
  const auto& mesh = neighbour->spec()->mesh();
  check_plain(op, plain, arg, mesh);
  auto spec =
      Spec::intern(mesh, plain.sizes(), std::vector<Placement>(mesh->ndim()), plain.strides(), plain.scalar_type());
  at::Tensor replica = wrap(std::move(spec), mesh->is_member() ? Shards{plain} : Shards{});
  replace_tensor(stack[first + arg], index, replica);
  return replica;
}

bool BoundCall::is_rate(const at::Tensor& tensor, size_t arg) const {
  return op.rule && op.rule->is_per_element() && !op.rule->scratch().empty() && stack[first + arg].isTensor() &&
         tensor.numel() == 1;
}

bool BoundCall::leads_element(size_t arg) const {
  return op.rule && op.rule->is_per_element() && stack[first + arg].isTensorList() &&
         (operands.empty() || operands[0].arg == arg);
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
  OpCall call{op, args(), {}, {}};
  for (const BoundOperand& operand : operands) {
    SpecPtr spec = operand.impl ? operand.impl->spec() : SpecPtr();
    const c10::IntArrayRef sizes = spec ? spec->sizes() : c10::IntArrayRef();
    call.operands.push_back({std::move(spec), sizes, operand.arg, operand.index, op.args[operand.arg].is_written});
  }
  return call;
}

}  // namespace shardwise
