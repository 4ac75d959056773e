#include "ops/sparse/sparse.h"

#include "ops/sparse/sparse_rule.h"
#include "runtime/rules/aten_operators.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <memory>

namespace shardwise {
namespace {

constexpr auto kSparseKey = c10::DispatchKey::SparsePrivateUse2;

[[noreturn]] void refuse(const std::string& op) {
  SW_CHECK_NOT_IMPLEMENTED(
      false, "[{}] is not implemented for sparse DTensors. Use to_dense(), or work on coalesce().values().", op);
}

class SparseKernel final : public c10::OperatorKernel {
 public:
  explicit SparseKernel(const c10::OperatorHandle& op) : info_(op), rule_(find_sparse_rule(info_)) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (!rule_) refuse(info_.name);
    const CommScope scope(info_.name.c_str());
    const KernelSpan span(info_.name);
    run_sparse(info_, *rule_, stack);
  }

 private:
  OpInfo info_;
  const SparseRule* rule_;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  refuse(c10::toString(op.operator_name()));
}

/// True if torch composes the operator of other operators, for any layout of the tensors.
bool decomposes(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return true;
  return op.operator_name().name.starts_with("aten::_foreach_") &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

}  // namespace

AtenKernels& aten_sparse_kernels() {
  static auto* kernels = new AtenKernels(kSparseKey);  // registrations last as long as the process
  return *kernels;
}

void register_sparse() {
  for (const AtenOperator& op : aten_operators())
    if (!decomposes(op.handle) && !op.handle.hasKernelForDispatchKey(kSparseKey))
      aten_sparse_kernels().impl(op.short_name(),
                                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SparseKernel>(op.handle)));
  registrations("_", kSparseKey).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace shardwise
