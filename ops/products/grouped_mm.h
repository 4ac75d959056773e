// ops/products/grouped_mm.h: products of groups of rows, each with a matrix of its own, as the experts of a mixture compute.
//
//   rows [T, K] ordered by group, matrices [E, K, N], offs [E]: where each group of rows ends
//
//   matrices sharded by group          each rank multiplies the rows of its groups: rows are moved there, matrices stay
//   matrices sharded along K or N      as in a matrix product: Partial(sum), or sharded columns
//   rows sharded, matrices whole       each rank multiplies the rows it has
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// aten::_grouped_mm: [T, K] and [E, K, N] give [T, N], two matrices [M, T] and [T, N] give [E, M, N], [E, M, K] and [K, T] give [M, T]; these need
/// `offs`, int32 and never decreasing. Rows after the last group are zeros. Two tensors of 3 dims give a batched product. Differentiable.
///
/// On mesh dims that shard `mat2` by group, the rows and the result are laid out as Shard(0, sizes=...), by the number of rows in each rank's groups.
/// Other mesh dims do not shard the rows then.
/// Throws: c10::ValueError for shapes, dtypes and offsets that do not fit. Cost: the rows that change ranks; `offs` is read on the host.
at::Tensor grouped_mm(const at::Tensor& self, const at::Tensor& mat2, const std::optional<at::Tensor>& offs,
                      const std::optional<at::Tensor>& bias = {}, std::optional<at::ScalarType> out_dtype = {});

}  // namespace shardwise
