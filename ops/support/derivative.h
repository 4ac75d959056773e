// ops/support/derivative.h: gives a result a derivative of our own, by one kind of node in torch's graph.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <functional>

namespace shardwise {

using torch::autograd::variable_list;

/// The inputs, four at most, whose gradients are needed.
using Wanted = std::array<bool, 4>;

/// Returns the gradients of the inputs from `grad`, the gradient of the result; others than `wanted` may be undefined. `saved`: the tensors passed to
/// with_derivative(). For second derivatives the function itself must be differentiable.
using Derivative =
    std::function<variable_list(const at::Tensor& grad, const variable_list& saved, const Wanted& wanted)>;

/// Calls `compute` without torch's derivative formulas.
template <class Compute>
auto below_derivatives(const Compute& compute) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return compute();
}

/// Returns `result`, which was computed from `inputs` (some may be undefined) below autograd, with the derivative `derivative`. Graphs show it as `name`. `saved`: the
/// tensors that the derivative reads. Writing to them before the backward is an error, as is a second backward without retain_graph.
/// Throws: c10::NotImplementedError for an input with a forward-mode tangent, unless `result` has one.
at::Tensor with_derivative(c10::ArrayRef<at::Tensor> inputs, at::Tensor result, const variable_list& saved,
                           const char* name, Derivative derivative);

/// The same for one input; `derivative` returns its gradient.
at::Tensor with_derivative(const at::Tensor& input, at::Tensor result, const variable_list& saved, const char* name,
                           std::function<at::Tensor(const at::Tensor& grad, const variable_list& saved)> derivative);

/// The same for several results of one function of `input`. `derivative` returns its gradient from those of the results, of which some, but not all, may
/// be undefined. Pre: autograd records `input`.
void with_derivative_of_all(const at::Tensor& input, const std::vector<at::Tensor>& results, const char* name,
                            std::function<at::Tensor(const variable_list& grads)> derivative);

/// True if the tensor has a forward-mode tangent.
bool has_tangent(const at::Tensor& tensor);

/// Forward mode for a linear function with result = function(input): if `input` has a tangent, sets the tangent of `result` to function(tangent).
/// Call it before with_derivative().
void carry_tangent(const at::Tensor& input, const at::Tensor& result,
                   const std::function<at::Tensor(const at::Tensor& tangent)>& function);

}  // namespace shardwise
