// ops/support/derivative.h: gives a result a derivative of our own, by one kind of node in torch's graph.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <functional>

namespace shardwise {

/// Returns the gradients of the inputs from `grad`, the gradient of the result. `saved`: the tensors passed to with_derivative(). For second
/// derivatives the function itself must be differentiable.
using Derivative =
    std::function<torch::autograd::variable_list(const at::Tensor& grad, const torch::autograd::variable_list& saved)>;

/// Returns `result`, which was computed from `inputs` below autograd, with the derivative `derivative`. Graphs show it as `name`. `saved`: the
/// tensors that the derivative reads. Writing to them before the backward is an error, as is a second backward without retain_graph.
/// Throws: c10::NotImplementedError for an input with a forward-mode tangent, unless `result` has one.
at::Tensor with_derivative(c10::ArrayRef<at::Tensor> inputs, at::Tensor result,
                           const torch::autograd::variable_list& saved, const char* name, Derivative derivative);

/// The same for one input; `derivative` returns its gradient.
at::Tensor with_derivative(
    const at::Tensor& input, at::Tensor result, const torch::autograd::variable_list& saved, const char* name,
    std::function<at::Tensor(const at::Tensor& grad, const torch::autograd::variable_list& saved)> derivative);

/// Forward mode for a linear function with result = function(input): if `input` has a tangent, sets the tangent of `result` to function(tangent).
/// Call it before with_derivative().
void carry_tangent(const at::Tensor& input, const at::Tensor& result,
                   const std::function<at::Tensor(const at::Tensor& tangent)>& function);

}  // namespace shardwise
