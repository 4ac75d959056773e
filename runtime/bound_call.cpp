#include "runtime/bound_call.h"

#include "runtime/dispatch.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

thread_local bool implicit_replication = false;

at::Tensor as_replica(const at::Tensor& plain, const DTensorImpl& beside) {
  const auto& mesh = beside.spec()->mesh();
  auto spec =
      Spec::intern(mesh, plain.sizes(), std::vector<Placement>(mesh->ndim()), plain.strides(), plain.scalar_type());
  return wrap(std::move(spec), mesh->is_member() ? Shards{plain} : Shards{});
}

bool is_mixed(const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0 && !is_dtensor(tensor); }

}  // namespace

BoundCall::BoundCall(const OpInfo& info, torch::jit::Stack& values)
    : op(info), stack(values), first(values.size() - info.n_args()) {
  if (implicit_replication) replicate_plain();
  key.add_pointer(&op);
  for (size_t i = 0; i < op.n_args(); ++i) {
    const c10::IValue& value = arg(i);
    if (value.isTensor()) {
      bind_tensor(value.toTensor(), i, 0);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto list = value.toListRef();
      key.add(list.size());
      for (size_t j = 0; j < list.size(); ++j)
        if (list[j].isTensor())
          bind_tensor(list[j].toTensor(), i, j);
        else
          key.add(0);
    } else {
      key.add_scalar(value, op.rule && op.args[i].is_number);
    }
  }
}

void BoundCall::bind_tensor(const at::Tensor& tensor, size_t arg, size_t index) {
  if (auto* impl = maybe_dtensor(tensor)) {
    TORCH_CHECK_VALUE(
        !op.args[arg].is_written || !impl->is_moved_view(),
        fmt::format("[{}] cannot write to a view whose values were moved from other ranks: the write would not reach "
                    "its base. Redistribute the base first, or write to the base with index_put_ or where.",
                    op.name));
    key.add_pointer(impl->spec().get());
    if (impl->local_kind() != LocalKind::kTensor) in_pieces = impl;
    operands.push_back({impl, static_cast<uint32_t>(arg), static_cast<uint32_t>(index)});
    return;
  }
  if (!tensor.defined()) return key.add(0);
  // Plain scalars in a written list are the step counts of a fused optimizer.
  const bool is_scalar = tensor.dim() == 0 && !(op.args[arg].is_written && stack[first + arg].isTensor());
  // No TypeError: torch's arithmetic takes one for "not implemented" and drops its words.
  TORCH_CHECK_VALUE(
      is_scalar,
      fmt::format("[{}] got a torch.Tensor of shape [{}] next to a DTensor. Wrap it with distribute_tensor(x, mesh, "
                  "[Replicate()]), or work under implicit_replication().",
                  op.name, fmt::join(tensor.sizes(), ", ")));
  key.add(static_cast<uint64_t>(tensor.scalar_type()) << 8 |
          (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 2 : 1));
  operands.push_back({nullptr, static_cast<uint32_t>(arg), static_cast<uint32_t>(index)});
}

void BoundCall::replicate_plain() {
  const DTensorImpl* beside = nullptr;
  for (size_t i = 0; i < op.n_args() && !beside; ++i) {
    if (arg(i).isTensor())
      beside = maybe_dtensor(arg(i).toTensor());
    else if (arg(i).isTensorList() || arg(i).isOptionalTensorList())
      for (const c10::IValue& element : arg(i).toListRef())
        if (!beside && element.isTensor()) beside = maybe_dtensor(element.toTensor());
  }
  for (size_t i = 0; i < op.n_args() && beside; ++i) {
    if (op.args[i].is_written) continue;
    if (arg(i).isTensor() && is_mixed(arg(i).toTensor())) arg(i) = as_replica(arg(i).toTensor(), *beside);
    if (arg(i).isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : arg(i).toTensorVector())
        list.push_back(is_mixed(tensor) ? as_replica(tensor, *beside) : tensor);
      arg(i) = std::move(list);
    } else if (arg(i).isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : arg(i).toListRef()) {
        auto tensor = element.toOptional<at::Tensor>();
        list.push_back(tensor && is_mixed(*tensor) ? as_replica(*tensor, *beside) : tensor);
      }
      arg(i) = std::move(list);
    }
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

ImplicitReplication::ImplicitReplication() : outer_(implicit_replication) { implicit_replication = true; }
ImplicitReplication::~ImplicitReplication() { implicit_replication = outer_; }
bool ImplicitReplication::is_on() { return implicit_replication; }

}  // namespace shardwise
