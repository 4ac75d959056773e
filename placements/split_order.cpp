#include "placements/split_order.h"

#include "placements/placement_list.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardwise {
namespace {

/// The mesh dims that shard one tensor dim, in the order in which they split it. Empty if no order has these split factors.
std::vector<int64_t> order_within(const UserPlacements& written, c10::IntArrayRef shape,
                                  const std::vector<int64_t>& mesh_dims) {
  std::vector<int64_t> order;
  for (auto m = mesh_dims.rbegin(); m != mesh_dims.rend(); ++m) {  // `order` holds only later mesh dims
    int64_t n_parts = 1;
    auto place = order.begin();
    while (n_parts != written.split_factors[*m] && place != order.end()) n_parts *= shape[*place++];
    if (n_parts != written.split_factors[*m]) return {};
    order.insert(place, *m);
  }
  return order;
}

}  // namespace

bool UserPlacements::is_reordered() const {
  return std::ranges::any_of(split_factors, [](int64_t factor) { return factor != 1; });
}

std::string to_string(const UserPlacements& written) {
  std::vector<std::string> words;
  for (size_t m = 0; m < written.placements.size(); ++m)
    words.push_back(written.split_factors[m] == 1 ? to_string(written.placements[m])
                                                  : fmt::format("_StridedShard({}, split_factor={})",
                                                                written.placements[m].dim(), written.split_factors[m]));
  return fmt::format("[{}]", fmt::join(words, ", "));
}

UserPlacements resolved(UserPlacements written, int64_t n_dims) {
  written.placements = with_dims_from_zero(written.placements, n_dims);
  for (size_t m = 0; m < written.placements.size(); ++m) {
    Placement& placement = written.placements[m];
    const auto later = c10::ArrayRef<Placement>(written.placements).slice(m + 1);
    if (written.split_factors[m] == 1 || splits(later, placement.dim())) continue;
    placement = Placement::strided_shard(placement.dim(), std::exchange(written.split_factors[m], 1));
  }
  return written;
}

std::vector<int64_t> order_of_splits(const UserPlacements& written, c10::IntArrayRef shape) {
  std::vector<int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (!written.is_reordered() || written.placements.size() != shape.size()) return order;  // Layout reports the error
  for (size_t m = 0; m < shape.size(); ++m) {
    if (written.split_factors[m] == 1) continue;
    std::vector<int64_t> mesh_dims;  // mesh dims that shard the same tensor dim
    for (size_t other = 0; other < shape.size(); ++other) {
      const Placement& placement = written.placements[other];
      if (!placement.is_shard(written.placements[m].dim())) continue;
      mesh_dims.push_back(static_cast<int64_t>(other));
      TORCH_CHECK_VALUE(placement.is_chunk(), "[placements] ", to_string(written),
                        " has explicit sizes on a dim that is split against the order of mesh dims. Give the mesh with "
                        "its dims in the order of the splits, and Shard(dim, sizes=[...]).");
    }
    const std::vector<int64_t> splits = order_within(written, shape, mesh_dims);
    TORCH_CHECK_VALUE(!splits.empty(), "[placements] no order of the dims of a mesh of shape ", shape, " splits as ",
                      to_string(written),
                      ": a split factor is the number of parts that later mesh dims split the same tensor dim into. "
                      "Give Shard, or a factor that is the product of their extents.");
    for (size_t k = 0; k < splits.size(); ++k) order[mesh_dims[k]] = splits[k];
  }
  return order;
}

std::optional<UserPlacements> written_in_order(c10::ArrayRef<Placement> placements, c10::IntArrayRef order,
                                               c10::IntArrayRef shape) {
  UserPlacements written{std::vector<Placement>(placements.size()), std::vector<int64_t>(placements.size(), 1)};
  for (size_t k = 0; k < placements.size(); ++k) {
    written.placements[order[k]] = placements[k];
    for (size_t before = 0; before < k && placements[k].is_shard(); ++before)
      if (order[before] > order[k] && placements[before].is_shard(placements[k].dim()))
        written.split_factors[order[k]] *= shape[order[before]];
  }
  for (size_t m = 0; m < placements.size(); ++m) {
    if (written.split_factors[m] == 1) continue;
    const int64_t dim = written.placements[m].dim();
    if (std::ranges::any_of(placements, [&](const Placement& p) { return p.is_shard(dim) && !p.is_chunk(); }))
      return std::nullopt;
  }
  return written;
}

RankGrid reordered(const RankGrid& grid, c10::IntArrayRef order) {
  RankGrid result;
  for (const int64_t dim : order) result.shape.push_back(grid.shape[dim]);
  Dims from(grid.shape.size(), 0);
  for (int64_t index = 0; index < grid.size(); ++index) {
    const Dims at = result.coord_at(index);
    for (size_t k = 0; k < order.size(); ++k) from[order[k]] = at[k];
    result.ranks.push_back(grid.rank_at(from));
  }
  return result;
}

}  // namespace shardwise
