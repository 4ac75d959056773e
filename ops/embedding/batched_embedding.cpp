// ops/embedding/batched_embedding.cpp: lets torch.func.vmap map embedding over ids and tables at once.
#include "ops/embedding/lookup_operators.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include <optional>

namespace shardwise {
namespace {

constexpr c10::DispatchKey kTransformKey = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;

/// Looks below all wrappers of vmap. A wrapper of torch.func.grad inside of vmap needs no case: the call comes here again without it.
bool is_distributed_within(at::Tensor tensor) {
  while (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) tensor = batched->value();
  return is_dtensor(tensor);
}

/// Runs before torch.func's own kernel for the operator, and only if a transform is active.
///
/// torch's batching rule concatenates the tables and adds each table's first row to its ids. It makes these numbers itself, as a plain tensor that is
/// equal on every rank.
class BatchedEmbedding final : public c10::OperatorKernel {
 public:
  explicit BatchedEmbedding(const c10::OperatorHandle& op)
      : transform_(op.getComputedKernelForDispatchKey(kTransformKey)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t first = stack->size() - op.schema().arguments().size();
    std::optional<ImplicitReplication> within;
    if (is_distributed_within((*stack)[first].toTensor()) && is_distributed_within((*stack)[first + 1].toTensor()))
      within.emplace();
    transform_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction transform_;
};

}  // namespace

void register_batched_embedding() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::embedding", "");
  registrations("aten", kTransformKey)
      .impl("embedding", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BatchedEmbedding>(op)));
}

}  // namespace shardwise
