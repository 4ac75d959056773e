#include "placements/placement_list.h"

#include <algorithm>

namespace shardwise {
namespace {

template <class Predicate>
std::vector<int64_t> mesh_dims_where(c10::ArrayRef<Placement> placements, const Predicate& holds) {
  std::vector<int64_t> result;
  for (size_t m = 0; m < placements.size(); ++m)
    if (holds(placements[m])) result.push_back(static_cast<int64_t>(m));
  return result;
}

bool is_one_of(int64_t dim, c10::IntArrayRef dims) { return std::ranges::find(dims, dim) != dims.end(); }

}  // namespace

std::vector<Placement> without_partial(c10::ArrayRef<Placement> placements) {
  return replicated_where(placements, &Placement::is_partial);
}

std::vector<Placement> without_boxes(c10::ArrayRef<Placement> placements) {
  std::vector<Placement> result = placements.vec();
  for (Placement& placement : result)
    if (const int64_t dim = placement.strided_dim(); dim >= 0)
      placement = Placement::shard(dim);
    else if (placement.places_boxes())
      placement = Placement::replicate();
  return result;
}

std::vector<Placement> whole_along(c10::ArrayRef<Placement> placements, c10::IntArrayRef dims) {
  return replicated_where(placements, [&](const Placement& placement) {
    return placement.places_boxes() || is_one_of(placement.split_dim(), dims);
  });
}

std::vector<Placement> with_reduce(c10::ArrayRef<Placement> placements, Reduce reduce) {
  std::vector<Placement> result = placements.vec();
  for (Placement& placement : result)
    if (placement.terms()) placement = Placement::partial(reduce);
  return result;
}

std::vector<Placement> with_dims_from_zero(c10::ArrayRef<Placement> placements, int64_t n_dims) {
  std::vector<Placement> result;
  for (const Placement& placement : placements) result.push_back(placement.with_dim_from_zero(n_dims));
  return result;
}

bool splits(c10::ArrayRef<Placement> placements, int64_t dim) {
  return std::ranges::any_of(placements, [&](const Placement& each) { return each.is_shard(dim); });
}

bool are_linear(c10::ArrayRef<Placement> placements) { return std::ranges::all_of(placements, &Placement::is_linear); }

std::vector<int64_t> mesh_dims_splitting(c10::ArrayRef<Placement> placements, int64_t dim) {
  return mesh_dims_where(placements, [&](const Placement& each) { return each.is_shard(dim); });
}

std::vector<int64_t> mesh_dims_with_terms(c10::ArrayRef<Placement> placements) {
  return mesh_dims_where(placements, [](const Placement& each) { return each.is_partial(); });
}

std::vector<int64_t> mesh_dims_that_differ(c10::ArrayRef<Placement> placements) {
  return mesh_dims_where(placements, [](const Placement& each) { return !each.is_whole(); });
}

bool hold_alike(c10::ArrayRef<Placement> a, c10::ArrayRef<Placement> b, c10::IntArrayRef mesh_shape) {
  for (size_t m = 0; m < mesh_shape.size(); ++m)
    if (!(a[m] == b[m]) && (mesh_shape[m] > 1 || a[m].places_boxes() || b[m].places_boxes())) return false;
  return true;
}

Dims first_replica(c10::ArrayRef<Placement> placements, c10::IntArrayRef coord) {
  Dims first(coord);
  for (size_t m = 0; m < placements.size(); ++m)
    if (placements[m].is_whole()) first[m] = 0;
  return first;
}

}  // namespace shardwise
