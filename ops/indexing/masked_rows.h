// ops/indexing/masked_rows.h: what a mask selects where mask and tensor are cut alike: each rank's part of it is found without its neighbours.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise {

/// self[:, ..., mask, ...] with the mask's dims beginning at dim `begin` of self, cut along that dim as many as each rank selects.
/// Ranks tell each other one number each. Differentiable: the gradient is laid out as self. A replicated mask is cut as self is.
/// Nothing where self and mask are not cut alike, by one mesh dim and along the mask's first dim only.
std::optional<at::Tensor> select_here(const at::Tensor& self, const at::Tensor& mask, int64_t begin);

/// The mesh dim that alone cuts a mask, along dim 0, or nothing.
std::optional<int64_t> only_cut_of_rows(const at::Tensor& mask);

/// What each coordinate of mesh dim `m` counted. Collective over that mesh dim.
c10::DimVector counts_by_coord(const at::Tensor& mask, int64_t m, int64_t count);

}  // namespace shardwise
