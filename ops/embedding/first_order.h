// ops/embedding/first_order.h: gradients that cannot be differentiated again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardwise {

/// Returns `gradient` such that differentiating it throws c10::NotImplementedError with the text `error`. Without this, a gradient computed from
/// values that require gradients would pass for a constant. Changes nothing if `gradient` is undefined or the backward records no graph.
at::Tensor of_first_order(at::Tensor gradient, const std::string& error);

}  // namespace shardwise
