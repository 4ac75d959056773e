// ops/embedding/saved_state.h: keeps the state of a lookup's forward for its backward.
//
// Tensors are kept as autograd's saved variables: they are freed after the backward, and saved-tensor hooks (save_on_cpu) see them. Other members
// live as long as the graph.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace shardwise {

template <class State>
struct SavedState : torch::CustomClassHolder {
  explicit SavedState(State given) : state(std::move(given)) {}
  State state;
};

/// Moves the tensors out of `state`: its `for_each_tensor(visit)` calls `visit(at::Tensor&)` for each, always in the same order.
template <class State>
torch::autograd::variable_list take_tensors(State& state) {
  torch::autograd::variable_list tensors;
  state.for_each_tensor([&](at::Tensor& tensor) { tensors.push_back(std::exchange(tensor, {})); });
  return tensors;
}

/// The reverse: puts the tensors back into `state`.
template <class State>
State with_tensors(State state, const torch::autograd::variable_list& tensors) {
  auto next = tensors.begin();
  state.for_each_tensor([&](at::Tensor& tensor) { tensor = *next++; });
  return state;
}

/// Keeps `state` for the backward of an autograd function.
template <class State>
void keep_state(torch::autograd::AutogradContext* ctx, State state) {
  ctx->save_for_backward(take_tensors(state));
  ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<SavedState<State>>(std::move(state)));
}

/// The state that keep_state() saved. Throws: torch's error if a backward has freed it.
template <class State>
State kept_state(const torch::autograd::AutogradContext* ctx) {
  const torch::autograd::variable_list tensors = ctx->get_saved_variables();
  const auto capsule = ctx->saved_data.at("state").toCapsule();
  return with_tensors(static_cast<const SavedState<State>*>(capsule.get())->state, tensors);
}

}  // namespace shardwise
