#include "runtime/plan.h"

#include <algorithm>
#include <map>
#include <set>

namespace shardwise {
namespace {

bool is_linear(Reduce reduce) { return reduce == Reduce::kSum || reduce == Reduce::kAvg; }

/// Which source box fills which destination box of one rank.
struct Source {
  int64_t rank;
  int64_t source_piece;
  int64_t destination_piece;
  Box box;
  bool combines;
};

/// Finds, for any rank, the holders from whom it fills its boxes.
class Sourcing {
 public:
  Sourcing(const Layout& source, const Layout& middle, std::vector<int> reduced_dims, std::set<int> changed)
      : source_(source), middle_(middle), reduced_dims_(std::move(reduced_dims)), changed_(std::move(changed)) {}

  std::vector<Source> of(int64_t rank) {
    std::vector<Source> result;
    const Dims coord = *grid().coord_of(rank);
    const auto boxes = middle_.boxes(rank);
    bool combines = false;
    for (const Dims& contributor : contributors(coord)) {
      const auto holders = holders_near(rank, coord, contributor);
      for (size_t piece = 0; piece < boxes.size(); ++piece)
        if (!boxes[piece].empty()) fill(boxes[piece], static_cast<int64_t>(piece), holders, combines, result);
      combines = true;
    }
    return result;
  }

 private:
  const RankGrid& grid() const { return source_.grid(); }

  /// `coord` with every combination of coordinates on the reduced mesh dims.
  std::vector<Dims> contributors(const Dims& coord) const {
    std::vector<Dims> result{coord};
    for (int mesh_dim : reduced_dims_) {
      std::vector<Dims> next;
      for (const Dims& base : result)
        for (int64_t i = 0; i < grid().shape[mesh_dim]; ++i) {
          next.push_back(base);
          next.back()[mesh_dim] = i;
        }
      result = std::move(next);
    }
    return result;
  }

  /// Ranks that may stand in for `contributor`: itself, then those that differ on changed mesh dims only, then the rest;
  /// started at a place that differs by rank, so that replicas share the load.
  std::vector<int64_t> holders_near(int64_t rank, const Dims& coord, const Dims& contributor) const {
    std::vector<std::pair<std::pair<int, int64_t>, int64_t>> order;
    const int64_t n_ranks = grid().size();
    const int64_t own = index_of(coord);
    for (int64_t index = 0; index < n_ranks; ++index) {
      const Dims other = coord_at(index);
      int distance = 0;
      bool fits = true;
      for (size_t m = 0; m < other.size(); ++m) {
        if (other[m] == contributor[m]) continue;
        const bool is_tied =
            source_.placements()[m].is_partial() || std::ranges::count(reduced_dims_, static_cast<int>(m));
        fits &= !is_tied;
        distance += changed_.contains(static_cast<int>(m)) ? 1 : 1000;
      }
      if (!fits) continue;
      const int64_t holder = grid().ranks[index];
      const int first = holder == rank ? -1 : other == contributor && reduced_dims_.empty() ? 0 : distance;
      order.push_back({{first, (index - own + n_ranks) % n_ranks}, holder});
    }
    std::ranges::sort(order);
    std::vector<int64_t> result;
    for (const auto& [key, holder] : order) result.push_back(holder);
    return result;
  }

  void fill(const Box& box, int64_t piece, const std::vector<int64_t>& holders, bool combines,
            std::vector<Source>& result) {
    std::vector<Box> missing{box};
    for (int64_t holder : holders) {
      const auto& held = boxes_of(holder);
      for (size_t i = 0; i < held.size() && !missing.empty(); ++i) {
        std::vector<Box> still_missing;
        for (const Box& part : missing) {
          const Box common = intersect(part, held[i]);
          if (common.empty()) {
            still_missing.push_back(part);
            continue;
          }
          result.push_back({holder, static_cast<int64_t>(i), piece, common, combines});
          for (Box& rest : subtract(part, common)) still_missing.push_back(std::move(rest));
        }
        missing = std::move(still_missing);
      }
      if (missing.empty()) return;
    }
    TORCH_INTERNAL_ASSERT(missing.empty(), "[redistribute] nobody holds ", to_string(missing[0]), " of ",
                          to_string(source_));
  }

  const std::vector<Box>& boxes_of(int64_t rank) {
    auto [found, is_new] = boxes_.try_emplace(rank);
    if (is_new) found->second = source_.boxes(rank);
    return found->second;
  }

  Dims coord_at(int64_t index) const {
    Dims coord(grid().shape.size());
    for (auto m = static_cast<int64_t>(coord.size()) - 1; m >= 0; --m) {
      coord[m] = index % grid().shape[m];
      index /= grid().shape[m];
    }
    return coord;
  }

  int64_t index_of(const Dims& coord) const {
    int64_t index = 0;
    for (size_t m = 0; m < coord.size(); ++m) index = index * grid().shape[m] + coord[m];
    return index;
  }

  const Layout& source_;
  const Layout& middle_;
  std::vector<int> reduced_dims_;
  std::set<int> changed_;
  std::map<int64_t, std::vector<Box>> boxes_;
};

/// The mesh dims along which boxes change: those whose placement differs, and the cuts nested in theirs.
std::set<int> changed_dims(const Layout& source, const Layout& middle) {
  std::set<int> changed;
  const auto before = source.placements(), after = middle.placements();
  for (size_t m = 0; m < before.size(); ++m) {
    bool differs = !(before[m] == after[m]);
    for (int outer : changed)
      if (before[m].is_shard())
        differs |= before[outer].is_shard(before[m].dim()) || after[outer].is_shard(before[m].dim());
    if (differs) changed.insert(static_cast<int>(m));
  }
  return changed;
}

/// The ranks of `rank`'s line along `mesh_dim`, or of the whole grid where it is -1.
std::vector<int64_t> participants(const RankGrid& grid, int64_t rank, int mesh_dim) {
  if (mesh_dim < 0) return grid.ranks;
  std::vector<int64_t> line;
  Dims coord = *grid.coord_of(rank);
  for (coord[mesh_dim] = 0; coord[mesh_dim] < grid.shape[mesh_dim]; ++coord[mesh_dim])
    line.push_back(grid.rank_at(coord));
  return line;
}

Exchange plan_exchange(const Layout& source, const Layout& middle, std::vector<int> reduced_dims, int64_t rank) {
  Exchange exchange;
  const auto changed = changed_dims(source, middle);
  exchange.mesh_dim = changed.size() == 1 ? *changed.begin() : -1;
  if (!reduced_dims.empty()) {
    exchange.reduce = source.placements()[reduced_dims[0]].reduce();
    for (int m : reduced_dims)
      if (source.placements()[m].reduce() == Reduce::kAvg) exchange.n_averaged *= source.grid().shape[m];
    if (is_linear(exchange.reduce)) exchange.reduce = Reduce::kSum;
  }
  Sourcing sourcing(source, middle, std::move(reduced_dims), changed);
  exchange.is_local = true;
  for (int64_t peer : participants(source.grid(), rank, exchange.mesh_dim))
    for (const Source& from : sourcing.of(peer)) {
      exchange.is_local &= from.rank == peer;
      if (from.rank == rank) exchange.sends.push_back({peer, from.source_piece, from.box});
      if (peer == rank) exchange.receives.push_back({from.rank, from.destination_piece, from.box, from.combines});
    }
  return exchange;
}

}  // namespace

Plan plan(const Layout& source, const Layout& destination, int64_t rank) {
  const auto from = source.placements();
  const auto to = destination.placements();
  std::vector<Placement> before = from.vec();  // the source once reduced_before is done
  std::vector<Placement> middle = to.vec();
  std::vector<int> leaving;  // Partial mesh dims that do not stay as they are
  for (size_t m = 0; m < from.size(); ++m)
    if (from[m].is_partial() && !(from[m] == to[m])) leaving.push_back(static_cast<int>(m));
  const bool commutes = std::ranges::all_of(leaving, [&](int m) {
    const Reduce first = from[leaving[0]].reduce();
    return from[m].reduce() == first || (is_linear(from[m].reduce()) && is_linear(first));
  });

  std::vector<AllReduce> reduces_before, reduces_after;
  std::vector<int> reduced_dims;
  for (auto it = leaving.rbegin(); it != leaving.rend(); ++it) {  // the last mesh dim is reduced first
    const int m = *it;
    if (!commutes) {
      reduces_before.push_back({m, from[m].reduce()});
      before[m] = Placement::replicate();
    } else if (to[m].is_shard() || to[m].is_enumerable()) {
      reduced_dims.insert(reduced_dims.begin(), m);
    } else {
      reduces_after.push_back({m, from[m].reduce()});
      middle[m] = from[m];
    }
  }
  std::vector<std::pair<int, Reduce>> to_partial;
  for (size_t m = 0; m < to.size(); ++m)
    if (to[m].is_partial() && !(from[m] == to[m])) {
      to_partial.emplace_back(m, to[m].reduce());
      if (!middle[m].is_partial() || middle[m] == to[m]) middle[m] = Placement::replicate();
    }

  Plan result(Layout(source.sizes(), source.grid_ptr(), middle));
  result.reduces_before = std::move(reduces_before);
  result.reduces_after = std::move(reduces_after);
  result.to_partial = std::move(to_partial);
  const Layout start(source.sizes(), source.grid_ptr(), before);
  result.exchanges = !(start == result.middle);
  const bool is_member = source.grid().coord_of(rank).has_value();
  if (result.exchanges && is_member)
    result.exchange = plan_exchange(start, result.middle, std::move(reduced_dims), rank);
  result.is_noop = source == destination;
  return result;
}

}  // namespace shardwise
