#include "runtime/dispatch.h"

#include "runtime/decide.h"
#include "runtime/element_run.h"
#include "runtime/local_kind.h"
#include "runtime/local_run.h"
#include "runtime/moved_view.h"
#include "runtime/out_call.h"
#include "runtime/replicated_run.h"
#include "runtime/rule.h"

#include <torch/library.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

std::shared_ptr<const Decision> decision_for(const BoundCall& call) {
  auto& cache = DecisionCache::of_thread();
  if (auto known = cache.find(call.key)) return known;
  OpCall dense = call.to_op_call();
  auto decision = std::make_shared<const Decision>(decide(dense));
  std::vector<SpecPtr> specs;
  for (const Operand& operand : dense.operands) specs.push_back(operand.spec);
  cache.insert(call.key, decision, std::move(specs));
  return decision;
}

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const c10::OperatorHandle& op) : info_(op), out_call_(OutCall::find(info_)) {
    info_.rule = RuleTable::global().find(info_.name);
  }
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (out_call_)
      out_call_->run(info_, stack);
    else
      dispatch(info_, stack);
  }

 private:
  OpInfo info_;
  std::unique_ptr<OutCall> out_call_;
};

/// Operators of other libraries come here by name; what is known of them is kept.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<c10::OperatorName, std::unique_ptr<OpInfo>>;
  const OpInfo* info;
  {
    std::lock_guard lock(mutex);
    auto& entry = (*known)[op.operator_name()];
    if (!entry) {
      entry = std::make_unique<OpInfo>(op);
      entry->rule = RuleTable::global().find(entry->name);
    }
    info = entry.get();
  }
  dispatch(*info, stack);
}

/// Registrations last as long as the process.
torch::Library& library(const char* ns, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
}

void run(BoundCall& call) {
  const OpInfo& op = call.op;
  if (!op.rule || op.rule->is_gathered()) return run_replicated(call);
  const auto decision = decision_for(call);
  if (!decision->propagation)
    run_replicated(call);
  else if (op.rule->is_per_element())
    run_elements(call, *decision);
  else
    run_decided(call, *decision);
}

}  // namespace

void dispatch(const OpInfo& op, torch::jit::Stack* stack) {
  BoundCall call(op, *stack);
  run(call);
  for (const at::Tensor& view : call.written_views) after_write(view);
}

void register_dispatch() {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& aten = library("aten", kTensorKey);
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(kTensorKey)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    const bool is_composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    if (is_composite && !RuleTable::global().find(full)) continue;
    aten.impl(full.c_str() + 6, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(*op)));
  }
  library("_", kTensorKey).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  if (!dispatcher.hasBackendFallbackForDispatchKey(kAutogradKey))
    library("_", kAutogradKey).fallback(torch::CppFunction::makeFallthrough());
  register_detach();
}

}  // namespace shardwise
