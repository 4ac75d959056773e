#include "ops/embedding/batched_embedding.h"

#include "runtime/dispatch/plain_operand.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"

#include <ATen/functorch/BatchedTensorImpl.h>

#include <optional>

namespace shardwise {
namespace {

constexpr c10::DispatchKey kTransformKey = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;

/// Under all batch dims; what torch.func.grad has wrapped comes here again without its wrapper, where vmap is outside of grad.
bool is_distributed_within(at::Tensor tensor) {
  while (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) tensor = batched->value();
  return is_dtensor(tensor);
}

/// Comes before what torch.func does with the operator, and only where a transform is active.
///
/// torch's rule puts the tables one below the other and adds to the ids where each begins: a plain tensor that it makes itself, the same on
/// every rank.
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
