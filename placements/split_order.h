// placements/split_order.h: Shards that split a tensor dim in another order than their mesh dims stand in.
//
// 8 rows on (dp=2, tp=2): tp splits first, dp each of its parts. torch.distributed.tensor writes
//   [_StridedShard(0, split_factor=2), Shard(0)]
// which is [Shard(0), Shard(0)] on the ranks of (tp=2, dp=2).
#pragma once

#include "placements/layout.h"

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// Placements with, per mesh dim, the number of parts that later mesh dims split the same tensor dim into before it does: 1 for all
/// but Shards against the order of mesh dims.
struct UserPlacements {
  std::vector<Placement> placements;
  std::vector<int64_t> split_factors;

  /// True where some mesh dim splits after a later one.
  bool is_reordered() const;
  bool operator==(const UserPlacements&) const = default;
};

/// "[_StridedShard(0, split_factor=2), Shard(0)]".
std::string to_string(const UserPlacements& written);

/// The same for a tensor of `n_dims` dims, with Shard dims counted from 0. Those out of range stay: Layout says what is wrong.
UserPlacements with_dims_from_zero(UserPlacements written, int64_t n_dims);

/// The dims of a mesh of `shape` in the order in which they split a tensor: those that share a tensor dim change places among
/// themselves. Pre: dims count from 0.
///
/// Throws: c10::ValueError for a factor that is not the product of later mesh dims of the same tensor dim, and for explicit sizes.
std::vector<int64_t> order_of_splits(const UserPlacements& written, c10::IntArrayRef shape);

/// The inverse: how placements on the mesh dims `order` of a mesh of `shape` are written in that mesh's own order. Nothing where
/// explicit sizes are split against it.
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
