#include "runtime/dispatch/view_replay.h"

#include "runtime/rules/op_info.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/registrations.h"

#include <ATen/Operators.h>
#include <c10/core/AutogradState.h>

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

/// The same for an operator that models call often, without boxing its arguments.
template <class Op, class Schema = typename Op::schema>
struct ReplayedHot;

template <class Op, class Return, class... Args>
struct ReplayedHot<Op, Return(Args...)> {
  static Return call(c10::DispatchKeySet keys, Args... args) {
    ViewReplay replay;
    return Op::redispatch(formula_keys(keys), args...);
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
