// ops/random/random_fill.h: random numbers in the place of a distributed tensor's values, by global element index.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/Generator.h>

#include <functional>
#include <optional>

namespace shardwise {

/// `fill(piece, global sizes, box, seed)` writes this rank's part; every rank takes the seed, those without a part too.
using FillPiece = std::function<void(const at::Tensor&, c10::IntArrayRef, const Box&, uint64_t)>;

/// Draws into every piece of `self`, in any layout; of a Partial the pieces' sum is what is drawn. Below autograd.
/// `dense`: the same operator, which is tried on one plain element and throws what it has to say of its arguments.
at::Tensor& draw_into(at::Tensor& self, const std::optional<at::Generator>& generator, const FillPiece& fill,
                      const std::function<void(at::Tensor&, const at::Generator&)>& dense);

/// True where the bool tensor `flags` has a true on any member. One bool is reduced where it is laid out over ranks. On a
/// non-member: false.
bool any_anywhere(const at::Tensor& flags);

}  // namespace shardwise
