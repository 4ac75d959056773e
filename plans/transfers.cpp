#include "plans/transfers.h"

#include <algorithm>
#include <iterator>

namespace shardwise {
namespace {

/// The coordinates of the ranks whose boxes count: `home` on mesh dims that neither shard the source nor are reduced, -1 (any) on the
/// others.
Dims pins(const Step& step, const Dims& home) {
  Dims result = home;
  for (size_t m = 0; m < result.size(); ++m)
    if (step.from.placements()[m].divides() || step.reduces_along(m)) result[m] = -1;
  return result;
}

bool fits(const Dims& coord, const Dims& pins) {
  for (size_t m = 0; m < coord.size(); ++m)
    if (pins[m] >= 0 && pins[m] != coord[m]) return false;
  return true;
}

/// The boxes of the destination that this rank sends `box`, or parts of it, to.
std::vector<OwnedBox> takers(const Step& step, int64_t rank, const Box& box) {
  const RankGrid& grid = step.from.grid();
  const Dims own = pins(step, *grid.coord_of(rank));
  const bool same_grid = step.from.grid_ptr() == step.to.grid_ptr() || grid == step.to.grid();
  if (same_grid) return step.to.owners(box, own);
  auto found = step.to.owners(box);
  std::erase_if(found, [&](const OwnedBox& taker) { return !fits(coord_for(taker.rank, grid, step.to.grid()), own); });
  return found;
}

void sort(std::vector<Transfer>& transfers) {
  std::ranges::stable_sort(transfers, [](const Transfer& a, const Transfer& b) {
    if (a.term != b.term) return a.term < b.term;
    return a.rank != b.rank ? a.rank < b.rank : std::ranges::lexicographical_compare(a.box.offsets, b.box.offsets);
  });
}

}  // namespace

Dims coord_for(int64_t rank, const RankGrid& from, const RankGrid& to) {
  if (auto own = from.coord_of(rank)) return *own;
  int64_t place = rank - to.ranks.front();  // a guess that holds for consecutive ranks
  if (place < 0 || place >= to.size() || to.ranks[place] != rank)
    place = std::ranges::find(to.ranks, rank) - to.ranks.begin();
  return *from.coord_of(from.ranks[place % from.size()]);
}

std::vector<OwnedBox> boxes_sent(const Step& step, int64_t rank) {
  std::vector<OwnedBox> sent;
  for (const Box& box : step.from.boxes(rank)) {
    std::vector<OwnedBox> found = takers(step, rank, box);
    std::erase_if(found, [&](const OwnedBox& taker) { return taker.rank == rank; });
    if (sent.empty())
      sent = std::move(found);
    else
      std::ranges::move(found, std::back_inserter(sent));
  }
  return sent;
}

Transfers transfers(const Step& step, int64_t rank) {
  Transfers result;
  const auto held = step.from.boxes(rank), wanted = step.to.boxes(rank);
  for (size_t i = 0; i < held.size(); ++i)
    for (OwnedBox& taker : takers(step, rank, held[i]))
      if (taker.rank != rank) result.sends.push_back({taker.rank, static_cast<int64_t>(i), std::move(taker.box)});
  if (!wanted.empty()) {
    const Dims own = pins(step, coord_for(rank, step.from.grid(), step.to.grid()));
    for (size_t i = 0; i < wanted.size(); ++i)
      for (OwnedBox& owner : step.from.owners(wanted[i], own)) {
        Transfer& receive = result.receives.emplace_back(owner.rank, static_cast<int64_t>(i), std::move(owner.box));
        if (step.kind == Step::Kind::kReduce) receive.term = (*step.from.grid().coord_of(receive.rank))[step.mesh_dim];
        if (receive.rank != rank) continue;
        const auto source = std::ranges::find_if(held, [&](const Box& box) { return box.contains(receive.box); });
        receive.from_piece = source - held.begin();
      }
  }
  sort(result.sends);
  sort(result.receives);
  return result;
}

Box part_of_round(const Box& box, int64_t round, int64_t n_rounds) {
  if (n_rounds == 1) return box;
  const auto dim = std::ranges::max_element(box.sizes) - box.sizes.begin();
  const auto [begin, end] = box.interval(dim);
  Box part = box;
  const int64_t length = end - begin;
  part.set_interval(dim, {begin + length * round / n_rounds, begin + length * (round + 1) / n_rounds});
  return part;
}

}  // namespace shardwise
