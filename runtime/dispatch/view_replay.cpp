#include "runtime/dispatch/view_replay.h"

#include "runtime/dispatch/view_call.h"
#include "runtime/rules/op_info.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <ATen/Operators.h>
#include <c10/core/AutogradState.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace shardwise {
namespace {

using torch::autograd::ViewFunc;
using torch::autograd::ViewInfo;

/// The place where autograd keeps how `view` is made of its base; null if `view` is no view, or made without operators. Autograd has no writer for it.
ViewInfo* replayed(const at::Tensor& view) {
  auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  if (!meta || !meta->has_bw_view() || !meta->get_backward_view().has_view_fn()) return nullptr;
  return &const_cast<ViewInfo&>(meta->get_backward_view());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

/// `now`, whose dims an in-place operator may have permuted, dropped or added, with the dims that it had as `before`: the sizes and strides tell which
/// are which. Returns `now` if they do not tell and the sizes have not changed, as after as_strided_.
/// Throws: c10::ValueError if they do not tell and the sizes have changed.
at::Tensor with_shape(const at::Tensor& now, const Spec& before) {
  Dims order;
  std::vector<bool> is_found(now.dim(), false);
  for (int64_t dim = 0; dim < before.dim(); ++dim)
    for (int64_t is = 0; is < now.dim() && before.sizes()[dim] != 1; ++is)
      if (!is_found[is] && now.size(is) == before.sizes()[dim] && now.stride(is) == before.strides()[dim]) {
        is_found[is] = true;
        order.push_back(is);
        break;
      }
  const auto n_kept = static_cast<int64_t>(order.size());
  for (int64_t is = 0; is < now.dim(); ++is)
    if (!is_found[is] && now.size(is) == 1) order.push_back(is);
  const auto n_wide = std::ranges::count_if(before.sizes(), [](int64_t size) { return size != 1; });
  if (n_kept != n_wide || static_cast<int64_t>(order.size()) != now.dim()) {
    SW_CHECK_VALUE(now.sizes() == before.sizes(),
                   "[autograd] a view's base had shape [{}], and an in-place operator made it [{}], with "
                   "strides that do not tell where the view's elements are. Give the operator a clone() of the base.",
                   fmt::join(before.sizes(), ", "), fmt::join(now.sizes(), ", "));
    return now;
  }
  at::Tensor result = now.permute(order);
  while (result.dim() > n_kept) result = result.squeeze(-1);
  for (int64_t dim = 0; dim < before.dim(); ++dim)
    if (before.sizes()[dim] == 1) result = result.unsqueeze(dim);
  return result;
}

/// The first operators of a view, on its base with the shape that this had for them.
class OfBase final : public ViewFunc {
 public:
  OfBase(SpecPtr base, bool has_history, std::unique_ptr<ViewFunc> view)
      : base_(std::move(base)), has_history_(has_history), view_(std::move(view)) {}

  std::vector<c10::SymInt> get_symints() const override { return view_->get_symints(); }
  size_t num_symints() const override { return view_->num_symints(); }
  std::vector<at::Tensor> get_tensors() const override { return view_->get_tensors(); }
  size_t num_tensors() const override { return view_->num_tensors(); }
  at::Tensor operator()(const at::Tensor& base) const override {
    const auto* impl = maybe_dtensor(base);
    const bool has_changed =
        impl && !is_traced(*impl) && (impl->sizes() != base_->sizes() || impl->strides() != base_->strides());
    const at::Tensor source = has_changed ? with_shape(base, *base_) : base;
    // After detach_() of the base autograd still expects a history from the view. In a backward it wants the view of a gradient, which needs none.
    const bool has_lost =
        has_history_ && !base.requires_grad() && c10::GradMode::is_enabled() && !torch::autograd::get_current_node();
    return (*view_)(has_lost ? source.detach().requires_grad_() : source);
  }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>> symints,
                                          std::optional<std::vector<at::Tensor>> tensors) const override {
    return std::make_unique<OfBase>(base_, has_history_, view_->clone_and_set(std::move(symints), std::move(tensors)));
  }

 private:
  SpecPtr base_;
  bool has_history_;
  std::unique_ptr<ViewFunc> view_;
};

/// The view operator of an in-place operator.
class Change final : public ViewFunc {
 public:
  explicit Change(std::function<at::Tensor(const at::Tensor&)> change) : change_(std::move(change)) {}

  at::Tensor operator()(const at::Tensor& view) const override { return change_(view); }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<Change>(change_);
  }

 private:
  std::function<at::Tensor(const at::Tensor&)> change_;
};

class Replayed final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    ViewReplay replay;
    const at::Tensor base = (stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()))->toTensor();
    op.redispatchBoxed(formula_keys(keys), stack);
    if (stack->back().isTensor()) ViewReplay::keep_shape(base, stack->back().toTensor());
  }
};

/// The same for an operator that models call often, without boxing its arguments.
template <class Op, class Schema = typename Op::schema>
struct ReplayedHot;

template <class Op, class Return, class... Args>
struct ReplayedHot<Op, Return(const at::Tensor&, Args...)> {
  static Return call(c10::DispatchKeySet keys, const at::Tensor& base, Args... args) {
    const at::Tensor held = base;  // autograd refers to it twice: the first reference beside Python's own takes the GIL
    ViewReplay replay;
    Return view = Op::redispatch(formula_keys(keys), base, args...);
    ViewReplay::keep_shape(base, view);
    return view;
  }
};

template <class Op>
void add_hot(torch::Library& aten) {
  const c10::OperatorName name(Op::name, Op::overload_name);
  aten.impl(c10::toString(name).substr(std::string_view("aten::").size()).c_str(),
            torch::CppFunction::makeFromUnboxedFunction(&ReplayedHot<Op>::call));
}

bool is_tracked(const AtenOperator& op) {
  return gives_view(op.handle.schema()) && !op.handle.hasKernelForDispatchKey(kAutogradKey) &&
         op.handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd) &&
         !op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

ViewReplay::ViewReplay() : outer_(c10::AutogradState::get_tls_state().get_view_replay_enabled()) {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
}

ViewReplay::~ViewReplay() { c10::AutogradState::get_tls_state().set_view_replay_enabled(outer_); }

void ViewReplay::keep_shape(const at::Tensor& base, const at::Tensor& view) {
  if (!base.requires_grad() && !c10::GradMode::is_enabled()) return;
  const auto* impl = maybe_dtensor(base);
  if (ViewInfo* const info = replayed(view); info && impl && info->base_.is_same(base) && !is_traced(*impl))
    info->view_fn_ = std::make_unique<OfBase>(impl->spec(), base.requires_grad(), std::move(info->view_fn_));
}

void become(const at::Tensor& self, const at::Tensor& changed, std::function<at::Tensor(const at::Tensor&)> change) {
  maybe_dtensor(self)->shallow_copy_from(changed.getIntrusivePtr());
  if (ViewInfo* const info = replayed(self))
    *info = info->chain(info->base_, self, std::make_unique<Change>(std::move(change)));
}

void register_view_replay() {
  auto& aten = registrations("aten", kAutogradKey);
  add_hot<at::_ops::view>(aten);
  add_hot<at::_ops::t>(aten);
  add_hot<at::_ops::transpose_int>(aten);
  add_hot<at::_ops::unsqueeze>(aten);
  add_hot<at::_ops::expand>(aten);
  for (const AtenOperator& op : aten_operators())
    if (is_tracked(op))
      aten.impl(op.short_name(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Replayed>()));
}

}  // namespace shardwise
