// ops/support/derivative.h: results of our own with a derivative of our own, as one kind of node in torch's graph.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <functional>

namespace shardwise {

/// The gradients of the inputs for `grad`, that of the result; `saved` as given to with_derivative(). For derivatives of second
/// order it must be differentiable itself.
using Derivative =
    std::function<torch::autograd::variable_list(const at::Tensor& grad, const torch::autograd::variable_list& saved)>;

/// `result`, computed of `inputs` below autograd, with `derivative`, which a graph shows as `name`. `saved`: the tensors that the
/// derivative reads. Writing to them before the backward is an error, as is a second backward without retain_graph.
/// Throws: c10::NotImplementedError for an input with a forward-mode tangent, unless `result` has one.
at::Tensor with_derivative(c10::ArrayRef<at::Tensor> inputs, at::Tensor result,
                           const torch::autograd::variable_list& saved, const char* name, Derivative derivative);

/// The same for one input, of whose gradient `derivative` is the function.
at::Tensor with_derivative(
    const at::Tensor& input, at::Tensor result, const torch::autograd::variable_list& saved, const char* name,
    std::function<at::Tensor(const at::Tensor& grad, const torch::autograd::variable_list& saved)> derivative);

/// Forward mode for a linear function: gives `result`, which is `function` of `input`, the tangent that `function` makes of the tangent
/// of `input`, where there is one. To be called before with_derivative().
void carry_tangent(const at::Tensor& input, const at::Tensor& result,
                   const std::function<at::Tensor(const at::Tensor& tangent)>& function);

}  // namespace shardwise
