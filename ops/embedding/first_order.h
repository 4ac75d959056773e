// ops/embedding/first_order.h: gradients that cannot be differentiated again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardwise {

/// `gradient`, whose own derivative is `error`: differentiating it throws c10::NotImplementedError. Without it, a gradient made of values that
/// want one themselves would pass for a constant. Stays as it is where it is undefined, and where no graph of the backward is made.
at::Tensor of_first_order(at::Tensor gradient, const std::string& error);

}  // namespace shardwise
