#include "runtime/api/local_form.h"

#include "runtime/api/dtensor.h"
#include "runtime/comm/events.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <ATen/RedispatchFunctions.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>

namespace shardwise {
namespace {

using torch::autograd::Variable;
using torch::autograd::variable_list;
namespace impl = torch::autograd::impl;

std::atomic<const LocalClass*> local_class{nullptr};

/// Runs before a gradient is captured or accumulated: lays it out and sets its form. Other users of the gradient keep theirs unchanged.
struct FormOfGradient final : torch::autograd::FunctionPreHook {
  FormOfGradient(SpecPtr spec, const LocalForm* form) : spec(std::move(spec)), form(form) {}

  variable_list operator()(const variable_list& grads) override {
    const auto* grad = maybe_dtensor(grads[0]);
    if (!grad || grad->spec()->mesh() != spec->mesh() || spec->layout().has_terms()) return grads;
    // A second tensor over shared memory would look like its only owner, and autograd would accumulate into it in place.
    const bool is_shared = grad->spec()->layout() == spec->layout() && grads[0].use_count() > 1;
    at::Tensor placed = is_shared ? grads[0].clone() : redistribute(grads[0], spec->placements().vec());
    maybe_dtensor(placed)->set_local_form(form);
    return {placed};
  }

  SpecPtr spec;  // of the leaf
  const LocalForm* form;
};

/// Runs after accumulation, when nobody else holds .grad.
struct FormOfSum final : torch::autograd::PostAccumulateGradHook {
  void operator()(const Variable& leaf) override {
    const auto* tensor = maybe_dtensor(leaf);
    auto* grad = maybe_dtensor(leaf.grad());
    if (tensor && grad && grad->spec()->layout() == tensor->spec()->layout())
      grad->set_local_form(tensor->local_form());
  }
};

/// A copy of the tensor that shares its pieces, without its history: no operator runs, except for readers of operators and tracers. None runs for them
/// either if it would have to send, for a stale view, or if the piece is an object of a subclass, which the result shares.
at::Tensor detach(c10::DispatchKeySet keys, const at::Tensor& tensor) {
  const auto& from = *maybe_dtensor(tensor);
  const bool is_seen = operators_are_read() || keys.has(c10::DispatchKey::Python);
  at::Tensor result;
  if (is_seen && !from.is_stale() && !from.holds_subclass()) {
    at::AutoDispatchBelowAutograd guard;
    result = at::redispatch::detach(keys & c10::after_autograd_keyset, tensor);
  } else {
    result = at::Tensor(from.shallow_copy_and_detach(from.version_counter(), /*allow_change=*/false));
    maybe_dtensor(result)->set_given({});  // it may require a gradient
  }
  if (const LocalForm* form = from.local_form()) keep_local_form(result, form);
  return result;
}

}  // namespace

void set_local_class(const LocalClass& known) {
  TORCH_INTERNAL_ASSERT(!local_class.exchange(&known), "there is one class of local tensors in C++");
}

const LocalClass* local_class_of(const at::TensorBase& local) {
  const LocalClass* const known = local_class.load(std::memory_order_acquire);
  return known && known->holds(local) ? known : nullptr;
}

const LocalForm* local_form_named(const std::string& name) {
  if (name.empty()) return nullptr;
  if (const LocalClass* const known = local_class)
    for (const LocalForm* const form : known->forms)
      if (form->name() == name) return form;
  SW_CHECK_VALUE(false,
                 "[load] the local part was saved as \"{}\", but no imported class has this name. Import the library "
                 "that defines it before you load.",
                 name);
}

const LocalForm* local_form_for_pieces() {
  const LocalClass* const known = local_class;
  return known ? known->for_pieces : nullptr;
}

void keep_local_form(const at::Tensor& tensor, const LocalForm* form) {
  auto* dtensor = maybe_dtensor(tensor);
  dtensor->set_local_form(form);
  if (!form || tensor.grad_fn()) return;
  impl::materialize_autograd_meta(tensor);  // hooks() needs it
  if (impl::hooks(tensor).empty()) impl::add_hook(tensor, std::make_unique<FormOfGradient>(dtensor->spec(), form));
  if (!impl::post_acc_grad_hooks(tensor)) impl::set_post_acc_grad_hooks(tensor, std::make_unique<FormOfSum>());
}

void register_detach() {
  registrations("aten", kAutogradKey).impl("detach", torch::CppFunction::makeFromUnboxedFunction(&detach));
}

}  // namespace shardwise
