#include "placements/layout.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace shardwise {

std::optional<Dims> RankGrid::coord_of(int64_t rank) const {
  if (ranks.empty()) return std::nullopt;
  int64_t index = rank - ranks.front();  // a guess that holds for consecutive ranks
  if (index < 0 || index >= size() || ranks[index] != rank) {
    index = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    if (index == size()) return std::nullopt;
  }
  return coord_at(index);
}

Dims RankGrid::coord_at(int64_t index) const {
  Dims coord = shape;
  for (size_t m = shape.size(); m-- > 0; index /= shape[m]) coord[m] = index % shape[m];
  return coord;
}

int64_t RankGrid::rank_at(c10::IntArrayRef coord) const {
  int64_t index = 0;
  for (size_t mesh_dim = 0; mesh_dim < shape.size(); ++mesh_dim) index = index * shape[mesh_dim] + coord[mesh_dim];
  return ranks[index];
}

void check(const RankGrid& grid) {
  const auto shape = c10::IntArrayRef(grid.shape);
  TORCH_CHECK_VALUE(std::all_of(shape.begin(), shape.end(), [](int64_t extent) { return extent > 0; }), "[mesh] shape ",
                    shape, " has an extent below 1: every mesh dim holds at least one rank. Leave that dim out.");
  int64_t n_places = 1;
  for (const int64_t extent : shape)
    if (__builtin_mul_overflow(n_places, extent, &n_places)) n_places = std::numeric_limits<int64_t>::max();
  TORCH_CHECK_VALUE(n_places == grid.size(), "[mesh] shape ", shape, " has ", n_places, " places for ", grid.size(),
                    " ranks: the numbers must agree. Give ", n_places, " ranks or another shape.");
  const auto& ranks = grid.ranks;
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (ascending && ranks.front() >= 0) return;

  auto sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  TORCH_CHECK_VALUE(sorted.front() >= 0, "[mesh] rank ", sorted.front(), " of ranks ", c10::IntArrayRef(ranks),
                    " is negative: ranks count from 0. Name ranks of the process group.");
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  TORCH_CHECK_VALUE(twice == sorted.end(), "[mesh] duplicate rank ", *twice, " in ranks ", c10::IntArrayRef(ranks),
                    ": a rank has one place in a mesh. Name each rank once.");
}

std::string to_string(const RankGrid& grid) {
  return grid.size() == 1 ? "1 rank" : fmt::format("{} ranks", fmt::join(grid.shape, "x"));
}

}  // namespace shardwise
