// placements/split.h: how one Shard splits the interval that earlier Shards have left.
//
// Shard(0) of [0,10) in 4:                    [0,3) [3,6) [6,9) [9,10)
// Shard(0, sizes=[1, 0, 3]) of [4,8) in 3:    [4,5) [5,5) [5,8)
// _StridedShard(0, split_factor=2) of [0,8) in 2:  [0,2)+[4,6)  [2,4)+[6,8)
#pragma once

#include "placements/placement.h"

#include <c10/util/SmallVector.h>

namespace shardwise::detail {

using Intervals = c10::SmallVector<Interval, 8>;

/// An interval to split, and its index among the pieces that outer Shards made of the tensor dim (0 if there are no outer Shards).
struct OuterPiece {
  Interval range;
  int64_t number = 0;
};

/// The row of explicit sizes for the outer piece `outer_number`; empty for torch.chunk's split.
c10::IntArrayRef row_of(const Placement& shard, int64_t outer_number, int64_t n_parts);

/// The pieces of `outer`, one per coordinate of a grid dim of extent `n_parts`, adjoining and in order.
///
/// Pre: `shard.is_shard()`; explicit sizes fit (Layout checks them). Cost: O(n_parts).
Intervals split(const OuterPiece& outer, const Placement& shard, int64_t n_parts);

/// split(...)[coord] and its piece number. Cost: O(1) for torch.chunk's split.
OuterPiece split_at(const OuterPiece& outer, const Placement& shard, int64_t n_parts, int64_t coord);

/// Splits every piece again, as the next grid dim does; results are ordered by the outer piece.
std::vector<Interval> split_each(c10::ArrayRef<Interval> outer, const Placement& shard, int64_t n_parts);

/// The boxes of a strided Shard at `coord`, within the box that the Shards leave: one per part of its dim, in order. Empty boxes are left out,
/// unless all are empty, and boxes that adjoin are one. Pre: `strided.strided_dim() >= 0`. Cost: O(its factor).
std::vector<Box> strided_boxes(const Box& whole, const Placement& strided, int64_t n_parts, int64_t coord);

/// The canonical form of `shard` over the pieces `outer`: a plain Shard if its sizes equal torch.chunk's split of every piece, a single row
/// if all rows are equal. A BlockShard gets the sizes of its parts.
///
/// Throws: c10::ValueError if the number of sizes is neither one row nor a row per piece, or if a row does not add up to its piece.
Placement canonical(const Placement& shard, c10::ArrayRef<Interval> outer, int64_t n_parts, int64_t mesh_dim);

}  // namespace shardwise::detail
