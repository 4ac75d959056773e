// ops/indexing/masked_rows.h: selection by a mask sharded like the tensor: each rank selects from its shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise {

/// self[:, ..., mask, ...] with the mask's dims beginning at dim `begin` of self; that dim of the result is sharded by the number of elements that
/// each rank selects. Differentiable: the gradient has self's layout. Cost: an all-gather of one number.
///
/// Returns nullopt unless one mesh dim shards self and mask alike along the mask's first dim and no other mesh dim
/// shards the mask's dims. A replicated mask is sharded like self.
std::optional<at::Tensor> select_locally(const at::Tensor& self, const at::Tensor& mask, int64_t begin);

/// The mesh dim that shards dim 0 of `mask`, if all other mesh dims replicate it; else nullopt.
std::optional<int64_t> only_row_shard(const at::Tensor& mask);

/// The `count` of the rank at each coordinate of mesh dim `m`. Collective along that mesh dim.
c10::DimVector counts_by_coord(const at::Tensor& mask, int64_t m, int64_t count);

}  // namespace shardwise
