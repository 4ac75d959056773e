#include "runtime/api/gradient_layout.h"

#include "runtime/api/gradients.h"
#include "runtime/api/redistribute.h"
#include "runtime/comm/event_stream.h"
#include "runtime/comm/propagated_value.h"
#include "runtime/redistribute/execute.h"
#include "runtime/tensor/object_lock.h"
#include "runtime/tensor/view_begin.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

at::Tensor tensor_of(DTensorImpl& impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(&impl));
}

constexpr const char* kName = "gradient layout";

/// Ends the move of a gradient as an event, if somebody reads it.
void emit(OpSpan span, const Spec& given, const Spec& result) {
  if (!span.is_open()) return;
  const std::string from = to_string(given.placements()), to = to_string(result.placements());
  span.end(std::make_shared<OpDescription>(OpDescription{kName, "as its leaf", {from}, {from}, {to}}));
}

/// The layout that `grad` of `leaf` should get; null if it has that layout, or is on another mesh, or the leaf has changed its shape since it was used.
SpecPtr wanted_layout(const DTensorImpl& leaf, const DTensorImpl& grad) {
  if (grad.spec()->mesh() != leaf.spec()->mesh() || grad.sizes() != leaf.sizes()) return nullptr;
  SpecPtr wanted = leaf.spec()->reduced();
  return grad.spec()->layout() == wanted->layout() ? nullptr : wanted;
}

/// True in a torch.autograd.grad() that returns the gradient of `leaf`. What it returns may share memory, as torch's gradients may.
bool is_returned(DTensorImpl& leaf) {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (!nodes || nodes->empty()) return false;
  const auto found = nodes->find(torch::autograd::impl::grad_accumulator(tensor_of(leaf)).get());
  return found != nodes->end() && found->second.captures_ != nullptr;
}

/// `grad` with the layout `placed`, in the same memory. Pre: leaves_in_place().
at::Tensor placed_as(const at::Tensor& grad, const SpecPtr& placed) {
  const DTensorImpl& impl = *maybe_dtensor(grad);
  at::Tensor result = wrap(placed, impl.shards());
  begin_view(result, origin_of(impl));
  share_version(result, grad);
  return result;
}

/// True if laying out saves no memory on any rank.
bool stays_as_large(const Spec& given, const Spec& wanted) {
  for (size_t dim = 0; dim < given.placements().size(); ++dim)
    if (given.placements()[dim] != wanted.placements()[dim] && !wanted.placements()[dim].is_whole()) return false;
  return true;
}

}  // namespace

/// Leaves whose .grad is to be laid out, in the order in which operators first met them. This is the program's order and equal on all
/// ranks, unlike autograd's: autograd may reach the leaves of one node in another order if a rank has additional leaves. Thread-safe,
/// because a backward may run on several threads.
class GradientsToLayOut {
 public:
  /// `place`: the leaf's place in that order.
  void note(DTensorImpl& leaf, uint64_t place) {
    const std::lock_guard lock(mutex_);
    auto& noted = leaves_[place];
    if (!noted.defined()) noted = tensor_of(leaf);
  }

  /// Pre: no backward that notes leaves is running.
  void lay_out() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> leaves, grads;
    std::vector<Placements> placements;
    for (const auto& [_, leaf] : leaves_) {
      const auto* grad = maybe_dtensor(leaf.grad());
      const SpecPtr wanted = grad ? wanted_layout(*maybe_dtensor(leaf), *grad) : nullptr;
      if (!wanted) continue;
      leaves.push_back(leaf);
      grads.push_back(leaf.grad());
      placements.push_back(wanted->placements().vec());
    }
    leaves_.clear();
    if (leaves.empty()) return;
    const OpSpan span;
    const auto laid_out = redistribute_many(grads, placements);
    for (size_t i = 0; i < leaves.size(); ++i) leaves[i].mutable_grad() = laid_out[i];
    for (size_t i = 0; i < leaves.size(); ++i)  // the first event counts the messages of all
      emit(i == 0 ? span : OpSpan(), *spec_of(grads[i]), *spec_of(laid_out[i]));
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, at::Tensor> leaves_;  // by place
};

namespace {

using PropagatedGradients = PropagatedValue<std::shared_ptr<GradientsToLayOut>, 2>;

/// The gradients of the outermost AccumulatedGradients, or null.
const std::shared_ptr<GradientsToLayOut>& accumulated() {
  static const std::shared_ptr<GradientsToLayOut> none;
  return PropagatedGradients::current(none);
}

/// The gradients to lay out at the end of the current backward(). If the backward fails, nothing is laid out.
std::shared_ptr<GradientsToLayOut> of_this_backward() {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<int, std::weak_ptr<GradientsToLayOut>>;
  const std::lock_guard lock(mutex);
  auto& entry = (*known)[torch::autograd::get_current_graph_task_id()];
  auto gradients = entry.lock();
  if (!gradients) {
    gradients = std::make_shared<GradientsToLayOut>();
    entry = gradients;
    std::erase_if(*known, [](const auto& of_task) { return of_task.second.expired(); });
    torch::autograd::Engine::get_default_engine().queue_callback([gradients] { gradients->lay_out(); });
  }
  return gradients;
}

class GradientLayout final : public torch::autograd::FunctionPreHook {
 public:
  explicit GradientLayout(DTensorImpl& leaf) : leaf_(leaf), place_(next_place()) {}

  variable_list operator()(const variable_list& grads) override {
    const auto* grad = maybe_dtensor(grads[0]);
    const SpecPtr wanted = grad ? wanted_layout(leaf_, *grad) : nullptr;
    if (!wanted) return grads;
    const bool is_recorded = at::GradMode::is_enabled();
    if (!is_recorded && may_stay(grads[0], *wanted)) return {placed_as(grads[0], in_place(grad->spec(), *wanted))};
    if (const auto& gradients = accumulated(); gradients && !is_recorded) {
      gradients->note(leaf_, place_);
      return grads;
    }
    if (!is_recorded &&
        (leaf_.grad().defined() ? is_unfinished(leaf_.grad()) : stays_as_large(*grad->spec(), *wanted))) {
      of_this_backward()->note(leaf_, place_);
      return grads;
    }
    const OpSpan span;
    variable_list result{laid_out_as(grads[0], *wanted)};
    emit(span, *grad->spec(), *wanted);
    return result;
  }

  /// In a compiled backward the hook is a call of its own between graphs.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    const auto call = [hook = *this](const at::TensorBase& grad) mutable -> at::TensorBase {
      return hook({at::Tensor(grad)})[0];
    };
    args.add_cpp_single_tensor_pre_hook(call, 0);
  }

 private:
  /// True if the leaf may take the memory of `grad` as it is.
  bool may_stay(const at::Tensor& grad, const Spec& wanted) const {
    const DTensorImpl& impl = *maybe_dtensor(grad);
    return leaves_in_place(*impl.spec(), wanted) && !impl.holds_subclass() && !impl.is_sparse() &&
           !is_unfinished(leaf_.grad()) && (is_returned(leaf_) || is_held_once(grad));
  }
  /// `given` with the placements of `wanted`, kept for the next gradient. It keeps its strides: torch copies an expanded gradient before it
  /// keeps it.
  SpecPtr in_place(const SpecPtr& given, const Spec& wanted) {
    const ObjectLock lock(&leaf_);
    if (given_ != given || placed_->placements() != wanted.placements()) {
      given_ = given;
      placed_ = given->placed_in_memory(wanted.placements().vec());
    }
    return placed_;
  }
  /// True for a gradient in another layout, left by an AccumulatedGradients that did not finish.
  bool is_unfinished(const at::Tensor& sum) const {
    const auto* before = maybe_dtensor(sum);
    return before && wanted_layout(leaf_, *before);
  }

  static uint64_t next_place() {
    static std::atomic<uint64_t> next = 0;
    return next++;
  }

  DTensorImpl& leaf_;       // owns this hook
  uint64_t place_;          // among all leaves of the process, as operators met them
  SpecPtr given_, placed_;  // the layout of the latest gradient that kept its memory, and the one that it got
};

}  // namespace

AccumulatedGradients::AccumulatedGradients() {
  if (accumulated()) return;
  gradients_ = std::make_shared<GradientsToLayOut>();
  guard_ = std::make_unique<c10::DebugInfoGuard>(PropagatedGradients::kind(),
                                                 std::make_shared<PropagatedGradients>(gradients_));
}

AccumulatedGradients::~AccumulatedGradients() = default;

void AccumulatedGradients::finish() {
  if (gradients_) gradients_->lay_out();
}

void lay_out_gradient(DTensorImpl& leaf) {
  const ObjectLock lock(&leaf);
  if (leaf.has_gradient_layout()) return;  // another thread was faster
  leaf.set_has_gradient_layout();
  auto& hooks = static_cast<torch::autograd::AutogradMeta*>(leaf.autograd_meta())->hooks_;
  hooks.insert(hooks.begin(), std::make_unique<GradientLayout>(leaf));
}

}  // namespace shardwise
