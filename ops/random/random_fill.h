// ops/random/random_fill.h: fills distributed tensors with random numbers, by global element index.
#pragma once

#include "runtime/numbers/draw.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/Generator.h>

#include <functional>
#include <optional>

namespace shardwise {

using MaybeGenerator = std::optional<at::Generator>;

/// Fills every local shard of `self`, in any layout. Every rank draws the seed, even without a shard. If `self` is Partial, its reduced value is
/// drawn. Below autograd. `dense`: torch's own operator.
/// It is called on one plain element so that it throws its errors about the arguments.
at::Tensor& draw_into(at::Tensor& self, const MaybeGenerator& generator, const Distribution& distribution,
                      const std::function<void(at::Tensor&, const at::Generator&)>& dense);

/// True if the bool tensor `flags` has a true element on any rank. Cost: an all-reduce of one bool if `flags` is distributed. False on ranks outside
/// the mesh.
bool any_anywhere(const at::Tensor& flags);

}  // namespace shardwise
