// ops/random/random_fill.h: fills distributed tensors with random numbers, by global element index.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/Generator.h>

#include <functional>
#include <optional>

namespace shardwise {

/// `fill(piece, global sizes, box, seed)` fills one local shard. Every rank draws the seed, even without a shard.
using FillPiece = std::function<void(const at::Tensor&, c10::IntArrayRef, const Box&, uint64_t)>;

/// Fills every local shard of `self`, in any layout. If `self` is Partial, its reduced value is drawn. Below autograd. `dense`: torch's own operator.
/// It is called on one plain element so that it throws its errors about the arguments.
at::Tensor& draw_into(at::Tensor& self, const std::optional<at::Generator>& generator, const FillPiece& fill,
                      const std::function<void(at::Tensor&, const at::Generator&)>& dense);

/// True if the bool tensor `flags` has a true element on any rank. Cost: an all-reduce of one bool if `flags` is distributed. False on ranks outside
/// the mesh.
bool any_anywhere(const at::Tensor& flags);

}  // namespace shardwise
