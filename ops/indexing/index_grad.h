// ops/indexing/index_grad.h: where the gradient of what was looked up by index comes to lie.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <torch/csrc/autograd/custom_function.h>

namespace shardwise {

/// Zeros for the gradient of a tensor of `source`, to which `grad` will be added by index: laid out as the source is. Where that is
/// replicated they follow `grad` instead of gathering it: cut as it along dims that both have, a sum along a dim that is
/// added up. Of a source in pieces the first dim is cut.
///
/// `of_source`: per dim of `grad` the dim of the source, or -1.
at::Tensor zeros_for_grad(const Spec& source, const at::Tensor& grad, c10::ArrayRef<int64_t> of_source);

/// `grad`, made of such zeros, laid out as a source in pieces is.
at::Tensor in_pieces_of(const Spec& source, const at::Tensor& grad);

/// A spec kept for the backward.
void keep_spec(torch::autograd::AutogradContext* ctx, const SpecPtr& spec);
SpecPtr kept_spec(const torch::autograd::AutogradContext* ctx);

}  // namespace shardwise
