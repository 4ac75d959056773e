// placements/split_order.h: Shards that split a tensor dim in another order than that of the mesh dims.
//
// 8 rows on (dp=2, tp=2), where tp splits first and dp splits each of its parts. torch.distributed.tensor spells this
//   [_StridedShard(0, split_factor=2), Shard(0)]
// and it equals [Shard(0), Shard(0)] on the ranks of (tp=2, dp=2). Where no later mesh dim shards the tensor dim, the factor says into how many
// parts the dim is divided first, and the placement is Placement::strided_shard().
#pragma once

#include "placements/layout.h"

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// Placements as the user spells them, with one split factor per mesh dim: the number of parts into which later mesh dims have already
/// split the same tensor dim. It is 1 except for Shards that split against the order of mesh dims.
struct UserPlacements {
  std::vector<Placement> placements;
  std::vector<int64_t> split_factors;

  /// True if some mesh dim splits after a later one.
  bool is_reordered() const;
  bool operator==(const UserPlacements&) const = default;
};

/// "[_StridedShard(0, split_factor=2), Shard(0)]".
std::string to_string(const UserPlacements& written);

/// The same placements for a tensor of `n_dims` dims, with negative Shard dims resolved. A factor that does not tell the order
/// of splits, since no later mesh dim shards the tensor dim, becomes a strided Shard. Dims out of range are kept: Layout reports them.
UserPlacements resolved(UserPlacements written, int64_t n_dims);

/// The dims of a mesh of `shape` in the order in which they split a tensor. Mesh dims that shard the same tensor dim are permuted among
/// their own positions. Pre: Shard dims count from 0.
///
/// Throws: c10::ValueError for explicit sizes, and for a factor that is not the product of extents of later mesh dims that shard the same
/// tensor dim.
std::vector<int64_t> order_of_splits(const UserPlacements& written, c10::IntArrayRef shape);

/// The inverse of order_of_splits(): the user's spelling, in the order of a mesh of `shape`, of `placements` on its mesh dims `order`.
/// Nothing if a dim that is split against the mesh's order has explicit sizes.
std::optional<UserPlacements> written_in_order(c10::ArrayRef<Placement> placements, c10::IntArrayRef order,
                                               c10::IntArrayRef shape);

/// The grid with its dims in another order: dim k is dim `order[k]` of `grid`.
RankGrid reordered(const RankGrid& grid, c10::IntArrayRef order);

/// `values[order[k]]` for each k.
template <class T>
std::vector<T> reordered(c10::ArrayRef<T> values, c10::IntArrayRef order) {
  std::vector<T> result;
  for (const int64_t from : order) result.push_back(values[from]);
  return result;
}

}  // namespace shardwise
