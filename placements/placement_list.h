// placements/placement_list.h: the placements of all mesh dims, asked and changed together.
//
//   [Shard(0), Partial(sum), Shard(1)]   without_partial(...)          [Shard(0), Replicate(), Shard(1)]
//                                        whole_along(..., {0})         [Replicate(), Partial(sum), Shard(1)]
//                                        mesh_dims_splitting(..., 1)   {2}
//                                        mesh_dims_with_terms(...)     {1}
//
// Shard dims count from 0 unless a comment says otherwise.
#pragma once

#include "placements/placement.h"

#include <functional>
#include <vector>

namespace shardwise {

/// The placements, with Replicate in place of each one for which `is_replaced` holds.
template <class Predicate>
std::vector<Placement> replicated_where(c10::ArrayRef<Placement> placements, const Predicate& is_replaced) {
  std::vector<Placement> result = placements.vec();
  for (Placement& placement : result)
    if (std::invoke(is_replaced, placement)) placement = Placement::replicate();
  return result;
}

/// The placements after every Partial has been reduced to replicas.
std::vector<Placement> without_partial(c10::ArrayRef<Placement> placements);
/// The placements after boxes of the whole tensor have been gathered, and strided Shards have become Shards.
std::vector<Placement> without_boxes(c10::ArrayRef<Placement> placements);
/// The placements after tensor dims `dims` have been made whole: without the splits of these dims, and without boxes.
std::vector<Placement> whole_along(c10::ArrayRef<Placement> placements, c10::IntArrayRef dims);
/// The placements with terms that are combined by `reduce`, where there are terms.
std::vector<Placement> with_reduce(c10::ArrayRef<Placement> placements, Reduce reduce);

/// The placements after tensor dim d becomes dim `to(d)`.
template <class Renumber>
std::vector<Placement> renumbered(c10::ArrayRef<Placement> placements, const Renumber& to) {
  std::vector<Placement> result = placements.vec();
  for (Placement& placement : result)
    if (const int64_t dim = placement.divided_dim(); dim >= 0) placement = placement.with_dim(to(dim));
  return result;
}
/// The placements of a tensor of `n_dims` dims with negative Shard dims counted from the front. Dims out of range are kept: Layout reports
/// them.
std::vector<Placement> with_dims_from_zero(c10::ArrayRef<Placement> placements, int64_t n_dims);

/// True if some mesh dim splits tensor dim `dim`.
bool splits(c10::ArrayRef<Placement> placements, int64_t dim);
/// True if linear operators may run on the ranks' values: no terms, or terms of a sum or an average.
bool are_linear(c10::ArrayRef<Placement> placements);

/// The mesh dims that split tensor dim `dim`, outermost first.
std::vector<int64_t> mesh_dims_splitting(c10::ArrayRef<Placement> placements, int64_t dim);
/// The mesh dims along which ranks hold terms that are still to be reduced.
std::vector<int64_t> mesh_dims_with_terms(c10::ArrayRef<Placement> placements);
/// The mesh dims along which ranks hold different values: parts or terms. Along all others they are replicas.
std::vector<int64_t> mesh_dims_that_differ(c10::ArrayRef<Placement> placements);

/// True if each rank of a mesh of this shape holds the same under both: they differ only along mesh dims of one rank, which divide nothing.
bool hold_alike(c10::ArrayRef<Placement> a, c10::ArrayRef<Placement> b, c10::IntArrayRef mesh_shape);

/// The coordinate of the first rank that holds the same values as the rank at `coord`.
Dims first_replica(c10::ArrayRef<Placement> placements, c10::IntArrayRef coord);

}  // namespace shardwise
