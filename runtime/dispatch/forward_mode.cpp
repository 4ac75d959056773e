#include "runtime/dispatch/dispatch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/jit_decomp_interface.h>

namespace shardwise {
namespace {

using torch::autograd::impl::JitDecompInterface;

bool is_composed(const c10::FunctionSchema& schema) {
  const auto op = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  return op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

/// torch's formulas look here for a decomposition before they refuse a tangent.
class Compositions final : public JitDecompInterface {
 public:
  explicit Compositions(const JitDecompInterface* others) : others_(others) {}

  bool has_jit_decomposition(const c10::FunctionSchema& schema) const override {
    return is_composed(schema) || (others_ && others_->has_jit_decomposition(schema));
  }
  void run_jit_decomposition(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    if (is_composed(op.schema()))
      op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    else
      others_->run_jit_decomposition(op, stack);
  }

 private:
  const JitDecompInterface* others_;  // torch's own
};

}  // namespace

void register_forward_mode() {
  // Lives as long as the process.
  torch::autograd::impl::setJitDecompImpl(new Compositions(torch::autograd::impl::getJitDecompImpl()));
}

}  // namespace shardwise
