#include "runtime/dispatch/replaced_answer.h"

#include "runtime/dispatch/dispatch.h"
#include "runtime/rules/op_info.h"
#include "runtime/tensor/derivative_formula.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>

namespace shardwise {
namespace {

/// Has an OpInfo of its own, so that cached decisions of the previous rule are not used.
class ByRuleOfUser final : public c10::OperatorKernel {
 public:
  ByRuleOfUser(const c10::OperatorHandle& op, const Rule& rule) : rule_(rule), info_(op) { info_.rule = &rule_; }
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { dispatch(info_, stack); }

 private:
  Rule rule_;
  OpInfo info_;
};

class ByFormula final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    op.redispatchBoxed(formula_keys(keys), stack);
  }
};

/// Drops torch's warning that a kernel replaces another, which is intended here.
class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

bool gives_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
}

}  // namespace

void replace_answer(const std::string& op, const Rule& rule) {
  const auto handle = find_operator(op);
  TORCH_INTERNAL_ASSERT(handle, "torch knows no operator ", op);
  SW_CHECK_VALUE(!handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd),
                 "[register_sharding] torch composes {} of other operators, which determine its layout. Register "
                 "shardings for the operators that explain() shows.",
                 op);
  const size_t space = op.find("::");
  const std::string name_space = op.substr(0, space), name = op.substr(space + 2);
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  registrations(name_space.c_str(), kTensorKey)
      .impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ByRuleOfUser>(*handle, rule)));
  if (handle->hasKernelForDispatchKey(kAutogradKey) && !gives_view(handle->schema()))
    registrations(name_space.c_str(), kAutogradKey)
        .impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ByFormula>()));
}

}  // namespace shardwise
