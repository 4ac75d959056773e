// ops/support/dim_pieces.h: the shards along one dim, for operators that combine a few values per shard.
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// redistribute() below autograd: no gradient is recorded.
at::Tensor moved_to(const at::Tensor& tensor, Placements placements);

/// The sizes of a traced tensor that has symbols; none for any other tensor.
std::vector<c10::SymInt> symbols_of(const at::Tensor& tensor);

/// Pieces of `spec` on `device`, without values. `symbols`: the symbols_of() of a tensor of these sizes.
Shards new_pieces(const Spec& spec, c10::SymIntArrayRef symbols, c10::Device device);

/// `tensor`, or a copy of it with the strides of at::empty_like(like). Below autograd.
at::Tensor in_order_of(const at::Tensor& like, const at::Tensor& tensor);

/// The shards of `tensor` along one dim, in order.
struct DimPieces {
  at::Tensor tensor;  // without EnumerableShard, and without Partial unless `keeps_sums`
  int64_t dim = 0;
  std::vector<Interval> intervals;  // of all shards along the dim; one interval if it is not sharded
  size_t own = 0;                   // index of this rank's interval

  bool has_several() const { return intervals.size() > 1; }
  /// The tensor's placements with shards of `lengths[i]` elements along the dim.
  Placements with_lengths(const std::vector<int64_t>& lengths) const;
  /// The tensor's placements with Replicate in the place of each shard of the dim.
  Placements unsharded() const;
  /// A DTensor with this rank's local shards `pieces` (none outside the mesh) and global extent `length` along the dim.
  at::Tensor wrapped(const Shards& pieces, int64_t length, Placements placements, at::ScalarType dtype) const;
};

/// `keeps_sums`: Partials of sum and avg stay as they are. Throws: c10::IndexError for a dim out of range. Redistributes EnumerableShard and other
/// Partials.
DimPieces pieces_along(const at::Tensor& tensor, int64_t dim, bool keeps_sums = false);

}  // namespace shardwise
