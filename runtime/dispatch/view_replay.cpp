#include "runtime/dispatch/view_replay.h"

#include "runtime/rules/op_info.h"
#include "runtime/tensor/derivative_formula.h"
#include "runtime/tensor/dtensor_impl.h"

#include <c10/core/AutogradState.h>
#include <torch/library.h>

#include <memory>

namespace shardwise {
namespace {

class Replayed final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    ViewReplay replay;
    op.redispatchBoxed(formula_keys(keys), stack);
  }
};

bool is_tracked(const OpInfo& op) {
  return op.is_view && op.name.starts_with("aten::") && !op.handle.hasKernelForDispatchKey(kAutogradKey) &&
         op.handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd) &&
         !op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

ViewReplay::ViewReplay() : outer_(c10::AutogradState::get_tls_state().get_view_replay_enabled()) {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
}

ViewReplay::~ViewReplay() { c10::AutogradState::get_tls_state().set_view_replay_enabled(outer_); }

void register_view_replay() {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& aten = *new torch::Library(torch::Library::IMPL, "aten", kAutogradKey, __FILE__,
                                   __LINE__);  // lasts as long as the process
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const OpInfo info(*op);
    if (is_tracked(info))
      aten.impl(info.name.c_str() + 6, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Replayed>()));
  }
}

}  // namespace shardwise
