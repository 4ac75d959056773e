// shardwise/placements.h: placements as Python spells them.
//
//   {sw::Shard(0), sw::Replicate()}       rows over mesh dim 0, all of them along mesh dim 1
//   {sw::Shard(0, {1, 3, 1, 3})}          the number of rows of each rank, which may be 0
//   {sw::BlockShard(0, 64)}               rows in blocks of 64, of which none is cut
//   {sw::Partial("sum")}                  the tensor is the sum of the ranks' pieces
//   {sw::RaggedShard({0, 1}, {2, 3, 0, 5})}                                        ranges of dims 0 and 1, flattened
//   {sw::EnumerableShard({{{0, 0}, {8, 5}, /*rank=*/2}, {{0, 5}, {8, 4}, 0}})}     any boxes, any number per rank
#pragma once

#include "placements/placement.h"

#include <iosfwd>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise {

/// torch.chunk's split along `dim`; a negative dim counts from the last.
inline Placement Shard(int64_t dim) { return Placement::shard(dim); }

/// As Placement::shard(): one extent (elements) per rank along the mesh dim. Throws: c10::ValueError for a negative one.
inline Placement Shard(int64_t dim, c10::IntArrayRef sizes) { return Placement::shard(dim, sizes); }

/// As Placement::block_shard(): blocks of `block` indices along `dim`, none of which is cut. Throws: c10::ValueError for a block below 1.
inline Placement BlockShard(int64_t dim, int64_t block) { return Placement::block_shard(dim, block); }

inline Placement Replicate() { return Placement::replicate(); }

/// `reduce_op`: "sum", "avg", "max", "min" or "product". Throws: c10::ValueError for any other.
inline Placement Partial(std::string_view reduce_op = "sum") {
  return Placement::partial(reduce_from_string(reduce_op));
}

/// As Placement::enumerable(): each piece is {offsets, sizes, rank}. Throws: c10::ValueError for pieces that overlap.
inline Placement EnumerableShard(std::vector<ShardMetadata> pieces) { return Placement::enumerable(std::move(pieces)); }

/// As Placement::ragged(): contiguous ranges of the flattened leading `dims`, in proportion to `local_units`, one per rank along the mesh
/// dim. Throws: c10::ValueError for dims that are not 0, 1, ..., negative units, and units that are all zero.
inline Placement RaggedShard(c10::IntArrayRef dims, c10::IntArrayRef local_units) {
  return Placement::ragged(dims, local_units);
}

/// "Shard(0)", and "[Shard(0), Replicate()]".
std::ostream& operator<<(std::ostream& stream, const Placement& placement);
std::ostream& operator<<(std::ostream& stream, const std::vector<Placement>& placements);

}  // namespace shardwise
