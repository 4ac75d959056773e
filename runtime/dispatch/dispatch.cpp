#include "runtime/dispatch/dispatch.h"

#include "runtime/api/local_form.h"
#include "runtime/comm/event_stream.h"
#include "runtime/dispatch/copied_view.h"
#include "runtime/dispatch/decide.h"
#include "runtime/dispatch/foreach_run.h"
#include "runtime/dispatch/gather_fallback.h"
#include "runtime/dispatch/local_run.h"
#include "runtime/dispatch/out_call.h"
#include "runtime/dispatch/prepare_arguments.h"
#include "runtime/rules/op_info.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"
#include "runtime/tensor/subclass.h"
#include "text/check.h"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace shardwise {
namespace {

std::shared_ptr<const Decision> decision_for(const BoundCall& call) {
  auto& cache = DecisionCache::of_thread();
  if (auto known = cache.find(call.key)) return known;
  OpCall dense = call.to_op_call();
  auto decision = std::make_shared<const Decision>(decide(dense));
  std::vector<SpecPtr> specs = c10::fmap(dense.operands, [&](const Operand& operand) { return operand.spec; });
  cache.insert(call.key, decision, std::move(specs), call.op.rule && call.op.rule->is_by_numbers());
  return decision;
}

/// Protects the table of rules, and its readers, against rules added late.
std::mutex rules_mutex;

class BoxedKernel final : public c10::OperatorKernel {
 public:
  /// `rule`: a user's, which lives as long as the process. The OpInfo is the kernel's own, so cached decisions of another rule are not used.
  explicit BoxedKernel(const c10::OperatorHandle& op, const Rule* rule = nullptr) : info_(op) {
    if (!rule) out_call_ = OutCall::find(info_);
    info_.rule = rule ? rule : RuleTable::global().find(info_.name);
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

/// Collectives are refused because ranks would send each other pieces of different sizes, or copies of the whole.
[[noreturn]] void refuse_collective(const std::string& op) {
  C10_THROW_ERROR(
      TypeError,
      fmt::format(
          "[{}] collectives of torch.distributed take tensors of this rank, not DTensors. Give them x.to_local() or "
          "x.full_tensor(); redistribute() moves a DTensor. Exclude such parameters from DistributedDataParallel: "
          "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names).",
          op));
}

bool is_collective(const c10::OperatorName& op) {
  const auto ns = op.getNamespace();
  return ns &&
         (*ns == "c10d" || *ns == "_c10d_functional" || *ns == "_c10d_functional_autograd" || *ns == "c10d_functional");
}

/// DistributedDataParallel flattens parameters with this operator before it sends them.
at::Tensor flatten_dense_tensors(at::TensorList) { refuse_collective("aten::flatten_dense_tensors"); }

/// Runs operators of other libraries, found by name. Their OpInfos are cached.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (is_collective(op.operator_name())) refuse_collective(op.operator_name().name);
  static auto* known = new std::unordered_map<c10::OperatorName, std::unique_ptr<OpInfo>>;
  const OpInfo* info;
  {
    std::lock_guard lock(rules_mutex);
    auto& entry = (*known)[op.operator_name()];
    if (!entry) {
      entry = std::make_unique<OpInfo>(op);
      entry->rule = RuleTable::global().find(entry->name);
    }
    info = entry.get();
  }
  dispatch(*info, stack);
}

bool is_plain_with_dims(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > 0 && !is_dtensor(value.toTensor());
}

/// True in torch's formulas for tangents, which run below autograd, if the operator has a kernel for tangents that are zero.
bool is_of_zero_tangents(const c10::OperatorHandle& op) {
  return torch::autograd::ForwardADLevel::try_get_by_idx(0) &&
         c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::ZeroTensor);
}

/// The kernel of kMetaKey. A call that Shardwise refuses because of plain tensors next to distributed ones is torch's own, on plain tensors of the same
/// shapes, if it is for tangents that are zero: formulas make such calls on meta to learn the shape of the result.
void without_meta(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kMetaKey);
  c10::DispatchKeySet left = (keys & below).remove_backend(c10::BackendComponent::MetaBit);
  // A redispatch does not skip a fallthrough, as calls do. Plain tensors on meta, whose key has no fallthrough, brought this one here.
  const auto has_kernel = [&](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  if (!has_kernel(kAutogradKey) && !has_kernel(c10::DispatchKey::Autograd) &&
      !has_kernel(c10::DispatchKey::CompositeImplicitAutograd))
    left = left.remove(kAutogradKey);
  const auto run = [&] { op.redispatchBoxed(left, stack); };
  if (std::ranges::none_of(*stack, is_plain_with_dims)) return run();
  const torch::jit::Stack given = *stack;
  try {
    run();
  } catch (const c10::ValueError&) {
    if (!is_of_zero_tangents(op)) throw;
    *stack = given;
    for (c10::IValue& value : *stack)
      if (value.isTensor() && value.toTensor().defined() && is_dtensor(value.toTensor())) {
        const at::Tensor& like = value.toTensor();
        value = at::Tensor(at::detail::empty_strided_meta(like.sizes(), like.strides(), like.scalar_type()));
      }
    const BelowAutograd guard;
    op.callBoxed(stack);
  }
}

/// Drops torch's warning that a kernel replaces another, which is intended here.
class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// Registers `kernel` for `op` in place of any other.
template <class Kernel>
void replace_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, std::unique_ptr<Kernel> kernel) {
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  const std::string full = c10::toString(op.operator_name());
  const size_t space = full.find("::");
  registrations(full.substr(0, space).c_str(), key)
      .impl(full.substr(space + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}

class ByFormula final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    op.redispatchBoxed(formula_keys(keys), stack);
  }
};

/// True if the operator of aten has neither a rule nor a kernel, so that its operands are gathered.
bool is_unanswered(const c10::OperatorHandle& op) {
  const OpInfo info(op);
  return !RuleTable::global().find(info.name) && !OutCall::find(info) && has_default(info.name, kTensorKey) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

/// The error that the kernel throws on other ranks, for a rank that has no element of some operand; null if the kernel accepts the call. A
/// decision covers all values of numbers, so it remembers the numbers of the latest call that was accepted.
std::exception_ptr refusal_elsewhere(const BoundCall& call, const Decision& decision) {
  std::vector<c10::IValue> numbers = numbers_of(call.op, call.args());
  if (decision.accepted_numbers && *decision.accepted_numbers == numbers) return nullptr;
  OpCall dense = call.to_op_call();
  try {
    infer_outputs(dense);
  } catch (const std::exception&) {
    return std::current_exception();
  }
  if (!dense.refusal) decision.accepted_numbers = std::move(numbers);
  return dense.refusal;
}

void run_by_rule(BoundCall& call) {
  const OpInfo& op = call.op;
  if (!op.rule || op.rule->is_gathered()) return run_gathered(call);
  const auto decision = decision_for(call);
  const std::exception_ptr refusal =
      decision->may_be_refused_on_other_ranks ? refusal_elsewhere(call, *decision) : nullptr;
  if (!decision->propagation)
    run_gathered(call);
  else if (op.rule->is_per_element())
    run_foreach(call, *decision);
  else
    run_decided(call, *decision, refusal);
}

std::string layout_of(const SpecPtr& spec) { return spec ? to_string(spec->placements()) : "plain"; }

/// The rule and the operands' layouts of a call that has not run yet. `decision`: null if the operands are gathered.
OpDescription described(const BoundCall& call, const Decision* decision) {
  OpDescription description{call.op.name, call.op.rule ? call.op.rule->text() : "none: replicated"};
  const OpCall dense = call.to_op_call();
  for (size_t i = 0; i < dense.operands.size(); ++i) {
    const SpecPtr& given = dense.operands[i].spec;
    description.given.push_back(layout_of(given));
    const bool is_replicated = !decision || !decision->propagation;
    const SpecPtr used = !given ? given : is_replicated ? given->replicated() : decision->propagation->inputs[i];
    description.used.push_back(layout_of(used ? used : given));
  }
  if (decision && !decision->propagation) description.rule += ", does not fit: replicated";
  return description;
}

/// Adds the layouts of the results on the stack.
void add_results(const BoundCall& call, OpDescription& description) {
  for_each_tensor(torch::jit::last(call.stack, call.op.n_returns()), [&](const at::Tensor& tensor, size_t, size_t) {
    if (const auto* impl = maybe_dtensor(tensor)) description.results.push_back(layout_of(impl->spec()));
  });
}

/// Throws: c10::ValueError if autograd records a quantised parameter. Pre: an operand's local tensor is of a subclass.
void check_takes_gradients(const BoundCall& call) {
  if (!c10::GradMode::is_enabled()) return;
  for (const BoundOperand& operand : call.operands) {
    if (!operand.impl || !operand.impl->holds_subclass()) continue;
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(operand.impl->autograd_meta());
    SW_CHECK_VALUE(!meta || !meta->requires_grad_ || !is_quantised(operand.impl->local_tensors()[0]),
                   "[{}] a quantised {} requires a gradient, but no optimizer can update it. Call "
                   "requires_grad_(False), or train a tensor that holds its values as {}.",
                   call.op.name, class_of(operand.impl->local_tensors()[0]),
                   c10::toString(operand.impl->spec()->dtype()));
  }
}

/// Runs the call. Errors on a subclass name the operator and the class.
void run(BoundCall& call) {
  if (!call.subclass) [[likely]]
    return run_by_rule(call);
  // Python must not be asked for the class while it holds an error, so the text is made before the call.
  const std::string words = fmt::format("[{}] on a DTensor whose local tensor is a {}: ", call.op.name,
                                        class_of(call.subclass->local_tensors()[0]));
  check_takes_gradients(call);
  try {
    run_by_rule(call);
  } catch (const std::exception& error) {
    name_error(error, words);
    throw;
  }
}

/// run() as an event. Texts are made for the first call with a decision, and for each call without one.
void run_traced(BoundCall& call, OpSpan& span) {
  const Rule* rule = call.op.rule;
  const auto decision = rule && !rule->is_gathered() ? decision_for(call) : nullptr;
  auto description = decision ? decision->description : nullptr;
  std::optional<OpDescription> made;
  if (!description) made = described(call, decision.get());
  run(call);
  if (made) {
    add_results(call, *made);
    description = std::make_shared<const OpDescription>(*std::move(made));
    if (decision) decision->description = description;
  }
  span.end(std::move(description));
}

}  // namespace

void dispatch(const OpInfo& op, torch::jit::Stack* stack) {
  const Rule* rule = op.rule;
  if (rule && rule->is_per_element() && dispatch_by_mesh(op, *stack)) return;
  prepare_arguments(op, *stack);
  BoundCall call(op, *stack);
  // A per-element list may also contain the view's base, and would see the write too late.
  SW_CHECK_VALUE(call.written_views.empty() || !rule || !rule->is_per_element(),
                 "[{}] the list of tensors to write to holds a view whose values were moved from other ranks. Write to "
                 "this view separately, with the operator for one tensor.",
                 op.name);
  if (OpSpan span; span.is_open()) [[unlikely]]
    run_traced(call, span);
  else
    run(call);
  call.writes.clear();  // the writes count from here on
  for (const at::Tensor& view : call.written_views) after_write(*maybe_dtensor(view));
}

c10::SmallVector<SpecPtr, 8> planned_layouts(const OpInfo& op, torch::jit::Stack stack) {
  prepare_arguments(op, stack);
  const auto decision = decision_for(BoundCall(op, stack));
  return decision->propagation ? decision->propagation->inputs : c10::SmallVector<SpecPtr, 8>();
}

void add_user_rule(const std::string& op, const Rule& rule) {
  const auto handle = find_operator(op);
  SW_CHECK_VALUE(handle,
                 "[register_rule] torch knows no operator {}. Register it with torch first; overloads are named as in "
                 "aten::add.Tensor.",
                 op);
  const std::lock_guard lock(rules_mutex);
  const bool may_have_rule =
      op.starts_with("aten::") ? is_unanswered(*handle) : !is_collective(handle->operator_name());
  SW_CHECK_VALUE(may_have_rule,
                 "[register_rule] Shardwise already handles {}. Register rules only for operators that explain() shows "
                 "as replicated.",
                 op);
  RuleTable::global().add(op, rule);
  replace_kernel(*handle, kTensorKey, std::make_unique<BoxedKernel>(*handle, RuleTable::global().find(op)));
}

void replace_answer(const std::string& op, const Rule& rule) {
  const auto handle = find_operator(op);
  TORCH_INTERNAL_ASSERT(handle, "torch knows no operator ", op);
  SW_CHECK_VALUE(!handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd),
                 "[register_sharding] torch composes {} of other operators, which determine its layout. Register "
                 "shardings for the operators that explain() shows.",
                 op);
  replace_kernel(*handle, kTensorKey, std::make_unique<BoxedKernel>(*handle, new Rule(rule)));
  if (handle->hasKernelForDispatchKey(kAutogradKey) && !gives_view(handle->schema()))
    replace_kernel(*handle, kAutogradKey, std::make_unique<ByFormula>());
}

void register_dispatch() {
  for (const auto key : {kTensorKey, kAutogradKey})
    registrations("aten", key).impl("flatten_dense_tensors", torch::CppFunction(&flatten_dense_tensors));
  for (const AtenOperator& op : aten_operators()) {
    if (op.handle.hasKernelForDispatchKey(kTensorKey)) continue;
    const bool is_composite = op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    if (is_composite && !RuleTable::global().find(op.name)) continue;
    register_default(op.handle, kTensorKey,
                     c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(op.handle)));
  }
  registrations("_", kTensorKey).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kMetaKey))
    registrations("_", kMetaKey).fallback(torch::CppFunction::makeFromBoxedFunction<&without_meta>());
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kAutogradKey))
    registrations("_", kAutogradKey).fallback(torch::CppFunction::makeFallthrough());
  register_detach();
}

}  // namespace shardwise
