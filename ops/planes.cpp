#include "ops/planes.h"

#include "ops/kernels.h"

#include <algorithm>
#include <memory>

namespace shardwise {
namespace {

class WithoutSelf final : public c10::OperatorKernel {
 public:
  explicit WithoutSelf(const c10::OperatorHandle& op)
      : n_args_(op.schema().arguments().size()), self_(*op.schema().argumentIndexWithName("self")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
    c10::IValue& self = (*stack)[stack->size() - n_args_ + self_];
    if (self.toTensor().requires_grad()) self = self.toTensor().detach();
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
  }

 private:
  size_t n_args_, self_;
};

}  // namespace

void add_whole_axes(c10::IntArrayRef sizes, size_t n, Signature& signature, Axes& axes) {
  for (int64_t size : sizes.slice(sizes.size() - n)) {
    axes.push_back({signature.add_factor(size)});
    signature.factors.back().is_whole = true;
  }
}

void keep_whole_if_empty(const OpCall& call, Signature& signature) {
  const bool is_empty = std::ranges::any_of(
      call.operands, [](const Operand& operand) { return c10::multiply_integers(operand.sizes) == 0; });
  for (Factor& factor : signature.factors) factor.is_whole |= is_empty;
}

void leave_self_out(const std::string& op) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + op).c_str(), "");
  aten_autograd_kernels().impl(op.c_str(),
                               torch::CppFunction::makeFromBoxedFunctor(std::make_unique<WithoutSelf>(handle)));
}

Rule planes(const char* name, size_t n) {
  return {name, [n](const OpCall& call, Signature& signature) {
            Axes shared;
            const c10::IntArrayRef sizes = call.operands[0].sizes;
            for (size_t dim = 0; dim + n < sizes.size(); ++dim) shared.push_back({signature.add_factor(sizes[dim])});
            for (const Operand& operand : call.operands) {
              const size_t n_shared = std::min(shared.size(), operand.sizes.size());
              Axes axes(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(n_shared));
              add_whole_axes(operand.sizes, operand.sizes.size() - n_shared, signature, axes);
              signature.inputs.push_back(std::move(axes));
            }
            Axes result = shared;
            result.resize(sizes.size());
            signature.outputs.assign(call.outputs.size(), result);
            keep_whole_if_empty(call, signature);
          }};
}

}  // namespace shardwise
