#include "runtime/api/local_kind.h"

#include "runtime/api/dtensor.h"
#include "runtime/tensor/registrations.h"

#include <ATen/RedispatchFunctions.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace shardwise {
namespace {

using torch::autograd::Variable;
using torch::autograd::variable_list;
namespace impl = torch::autograd::impl;

/// Before a gradient is captured or added up, and after it is laid out: it may have other users, so they keep theirs as it is.
struct KindOfGradient final : torch::autograd::FunctionPreHook {
  KindOfGradient(SpecPtr spec, LocalKind kind) : spec(std::move(spec)), kind(kind) {}

  variable_list operator()(const variable_list& grads) override {
    const auto* grad = maybe_dtensor(grads[0]);
    if (!grad || grad->spec()->mesh() != spec->mesh() || spec->layout().is_partial()) return grads;
    // A second tensor over memory that others hold would pass for its only owner, and be added to in place.
    const bool is_shared = grad->spec()->layout() == spec->layout() && grads[0].use_count() > 1;
    at::Tensor placed = is_shared ? grads[0].clone() : redistribute(grads[0], spec->placements().vec());
    maybe_dtensor(placed)->set_local_kind(kind);
    return {placed};
  }

  SpecPtr spec;  // of the tensor
  LocalKind kind;
};

/// After it was added up: .grad is nobody else's.
struct KindOfSum final : torch::autograd::PostAccumulateGradHook {
  void operator()(const Variable& leaf) override {
    const auto* tensor = maybe_dtensor(leaf);
    auto* grad = maybe_dtensor(leaf.grad());
    if (tensor && grad && grad->spec()->layout() == tensor->spec()->layout())
      grad->set_local_kind(tensor->local_kind());
  }
};

/// No operator is asked for a stale view: the alias is stale, too, and nothing is sent. Nor is one of a subclass: the object is shared.
at::Tensor detach(c10::DispatchKeySet keys, const at::Tensor& tensor) {
  if (const auto* from = maybe_dtensor(tensor); from->is_stale() || from->holds_subclass())
    return at::Tensor(from->shallow_copy_and_detach(from->version_counter(), /*allow_change=*/false));
  at::Tensor result = [&] {
    at::AutoDispatchBelowAutograd guard;
    return at::redispatch::detach(keys & c10::after_autograd_keyset, tensor);
  }();
  if (const auto* from = maybe_dtensor(tensor); from->local_kind() != LocalKind::kTensor)
    keep_local_kind(result, from->local_kind());
  return result;
}

}  // namespace

void keep_local_kind(const at::Tensor& tensor, LocalKind kind) {
  auto* dtensor = maybe_dtensor(tensor);
  dtensor->set_local_kind(kind);
  if (kind == LocalKind::kTensor || tensor.grad_fn()) return;
  impl::materialize_autograd_meta(tensor);  // hooks() asks for it
  if (impl::hooks(tensor).empty()) impl::add_hook(tensor, std::make_unique<KindOfGradient>(dtensor->spec(), kind));
  if (!impl::post_acc_grad_hooks(tensor)) impl::set_post_acc_grad_hooks(tensor, std::make_unique<KindOfSum>());
}

void register_detach() {
  registrations("aten", kAutogradKey).impl("detach", torch::CppFunction::makeFromUnboxedFunction(&detach));
}

}  // namespace shardwise
