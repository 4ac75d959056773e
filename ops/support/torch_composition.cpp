#include "ops/support/torch_composition.h"

#include "ops/support/kernels.h"

namespace shardwise {
namespace {

void compose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  using Key = c10::DispatchKey;
  const bool is_functional_too = op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd);
  op.callBoxedForDispatchKey(
      is_functional_too ? Key::CompositeExplicitAutograd : Key::CompositeExplicitAutogradNonFunctional, *stack);
}

}  // namespace

void add_torch_compositions(std::initializer_list<const char*> ops) {
  for (const char* op : ops) aten_kernels().impl(op, torch::CppFunction::makeFromBoxedFunction<&compose>());
}

}  // namespace shardwise
