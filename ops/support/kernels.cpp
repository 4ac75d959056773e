#include "ops/support/kernels.h"

#include "runtime/dispatch/dispatch.h"
#include "runtime/tensor/registrations.h"

namespace shardwise {
namespace {

void compose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  using Key = c10::DispatchKey;
  const bool is_functional_too = op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd);
  op.callBoxedForDispatchKey(
      is_functional_too ? Key::CompositeExplicitAutograd : Key::CompositeExplicitAutogradNonFunctional, *stack);
}

}  // namespace

void AtenKernels::impl(const char* op, torch::CppFunction&& kernel) {
  give_way(std::string("aten::") + op, key_);
  library_.impl(op, std::move(kernel));
}

void AtenKernels::call_class(const std::string& name, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const c10::OperatorHandle handle = *find_operator(name);
  if (keys.has(kAutogradKey)) return handle.redispatchBoxed(formula_keys(keys), &stack);
  OpInfo op(handle);
  op.rule = RuleTable::global().find(name);
  dispatch(op, &stack);
}

// Registrations last as long as the process.
AtenKernels& aten_kernels() {
  static auto* kernels = new AtenKernels(kTensorKey);
  return *kernels;
}

AtenKernels& aten_autograd_kernels() {
  static auto* kernels = new AtenKernels(kAutogradKey);
  return *kernels;
}

void add_torch_compositions(std::initializer_list<const char*> ops) {
  for (const char* op : ops) aten_kernels().impl(op, torch::CppFunction::makeFromBoxedFunction<&compose>());
}

}  // namespace shardwise
