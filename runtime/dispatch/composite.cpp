#include "runtime/dispatch/dispatch.h"

#include "runtime/api/dtensor.h"
#include "runtime/dispatch/bound_call.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/op_info.h"
#include "runtime/tensor/registrations.h"

#include <algorithm>
#include <memory>

namespace shardwise {
namespace {

bool is_plain(const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0 && !is_dtensor(tensor); }

class CompositeKernel final : public c10::OperatorKernel {
 public:
  CompositeKernel(const c10::OperatorHandle& op, OnPieces on_pieces) : info_(op), on_pieces_(on_pieces) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const MeshPtr mesh = examine(torch::jit::last(stack, info_.n_args()));
    if (mesh && on_pieces_ && on_pieces_(op, mesh, *stack)) return;
    {
      const ImplicitReplication within;
      op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    }
    if (mesh) wrap_results(mesh, *stack);
  }

 private:
  /// The mesh of the distributed arguments; null if there are none. Throws: c10::ValueError for a plain argument next to them.
  MeshPtr examine(c10::ArrayRef<c10::IValue> args) const {
    MeshPtr mesh;
    std::pair<const at::Tensor*, size_t> plain{nullptr, 0};
    for_each_tensor(args, [&](const at::Tensor& tensor, size_t arg, size_t) {
      if (const auto* impl = maybe_dtensor(tensor))
        mesh = impl->spec()->mesh();
      else if (is_plain(tensor) && !info_.args[arg].is_written)
        plain = {&tensor, arg};
    });
    if (mesh && plain.first) check_plain(info_, *plain.first, plain.second, mesh);
    return mesh;
  }

  void wrap_results(const MeshPtr& mesh, torch::jit::Stack& stack) const {
    const size_t begin = stack.size() - info_.n_returns();
    for (size_t i = 0; i < info_.n_returns(); ++i) {
      c10::IValue& value = stack[begin + i];
      if (info_.returned_arg[i] >= 0) continue;
      if (value.isTensor()) {
        if (needs_wrapping(value.toTensor())) value = replica_of(value.toTensor(), mesh);
      } else if (value.isTensorList()) {
        for (size_t j = 0; j < value.toListRef().size(); ++j)
          if (const at::Tensor element = value.toListRef()[j].toTensor(); needs_wrapping(element))
            replace_tensor(value, j, replica_of(element, mesh));
      }
    }
  }

  static bool needs_wrapping(const at::Tensor& tensor) {
    return tensor.defined() && !is_dtensor(tensor) && tensor.layout() == at::kStrided;
  }

  OpInfo info_;
  OnPieces on_pieces_;  // may be null
};

bool returns_tensors(const c10::OperatorHandle& op) {
  for (const auto& result : op.schema().returns())
    if (result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return true;
  return false;
}

}  // namespace

void register_composite(const c10::OperatorHandle& op, OnPieces on_pieces) {
  for (const auto key : {kTensorKey, kAutogradKey})
    register_default(op, key,
                     c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<CompositeKernel>(op, on_pieces)));
}

void register_composites(c10::ArrayRef<std::string_view> without_plain) {
  for (const AtenOperator& op : aten_operators()) {
    if (!op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
        op.handle.hasKernelForDispatchKey(kTensorKey) || op.handle.hasKernelForDispatchKey(kAutogradKey) ||
        op.handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd) ||
        std::ranges::count(without_plain, op.handle.operator_name().name) || !returns_tensors(op.handle))
      continue;
    if (op.handle.schema().overload_name().find("name") != std::string::npos) continue;  // named dims cannot be boxed
    register_composite(op.handle, nullptr);
  }
}

}  // namespace shardwise
