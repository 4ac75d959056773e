#include "plans/traffic.h"

#include "placements/placement_list.h"
#include "placements/split.h"
#include "plans/pattern.h"
#include "plans/transfers.h"
#include "text/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwise {

const Link& link_along(const std::vector<Link>& links, size_t mesh_dim) {
  static const Link standard;
  return links.empty() ? standard : links[std::min(mesh_dim, links.size() - 1)];
}

double transfer_seconds(const Link& link, int64_t n_messages, int64_t n_bytes) {
  return static_cast<double>(n_messages) * link.latency_us * 1e-6 +
         static_cast<double>(n_bytes) / (link.gb_per_s * 1e9);
}

namespace {

/// The elements and boxes that some ranks have in common with one box.
struct Tally {
  int64_t elements = 1;
  int64_t boxes = 1;
};

/// Adds up what one box has in common with the boxes of all ranks that `pins` admits.
///
/// Boxes are products of intervals, and each mesh dim shards at most one tensor dim. So the sum over ranks is a product of sums over the
/// mesh dims of each tensor dim, and no rank is visited.
class Tallying {
 public:
  /// `pins`: a coordinate per mesh dim, or -1 for all coordinates.
  Tallying(const Layout& layout, const Box& box, c10::IntArrayRef pins) : layout_(layout), box_(box), pins_(pins) {}

  Tally run() const {
    Tally result;
    for (size_t m = 0; m < pins_.size(); ++m)
      if (!layout_.placements()[m].is_shard() && pins_[m] < 0) result = times(result, extent(m), extent(m));
    for (int64_t dim = 0; dim < layout_.dim(); ++dim) {
      const Tally along = tally_dim(dim, 0, {{0, layout_.sizes()[dim]}, 0});
      result = times(result, along.elements, along.boxes);
    }
    return result;
  }

 private:
  static Tally times(Tally tally, int64_t elements, int64_t boxes) {
    return {tally.elements * elements, tally.boxes * boxes};
  }

  int64_t extent(size_t m) const { return layout_.grid().shape[m]; }

  /// Counts for tensor dim `dim` when `outer` is split by the mesh dims from `m` on.
  Tally tally_dim(int64_t dim, size_t m, const detail::OuterPiece& outer) const {
    const Interval wanted = box_.interval(dim);
    const Interval common{std::max(outer.range.begin, wanted.begin), std::min(outer.range.end, wanted.end)};
    if (common.length() <= 0) return {0, 0};
    while (m < pins_.size() && !layout_.placements()[m].is_shard(dim)) ++m;
    if (m == pins_.size()) return {common.length(), 1};
    const Placement& shard = layout_.placements()[m];
    if (pins_[m] >= 0) return tally_dim(dim, m + 1, detail::split_at(outer, shard, extent(m), pins_[m]));
    if (shard.is_chunk() && !splits(layout_.placements().slice(m + 1), dim)) {  // counted by division
      const int64_t step = (outer.range.length() + extent(m) - 1) / extent(m);
      const int64_t first = (common.begin - outer.range.begin) / step;
      const int64_t last = (common.end - 1 - outer.range.begin) / step;
      return {common.length(), last - first + 1};
    }
    Tally sum{0, 0};
    const detail::Intervals pieces = detail::split(outer, shard, extent(m));
    for (int64_t coord = 0; coord < extent(m) && pieces[coord].begin < common.end; ++coord) {
      if (pieces[coord].end <= common.begin) continue;
      const Tally part = tally_dim(dim, m + 1, {pieces[coord], outer.number * extent(m) + coord});
      sum = {sum.elements + part.elements, sum.boxes + part.boxes};
    }
    return sum;
  }

  const Layout& layout_;
  const Box& box_;
  c10::IntArrayRef pins_;
};

int64_t volume(const std::vector<Box>& boxes) {
  int64_t result = 0;
  for (const Box& box : boxes) result += box.numel();
  return result;
}

int64_t common_volume(const std::vector<Box>& some, const std::vector<Box>& others) {
  int64_t result = 0;
  for (const Box& a : some)
    for (const Box& b : others) result += intersect(a, b).numel();
  return result;
}

/// Traffic within one mesh whose ranks have one box each. Messages are charged to the link of the first mesh dim in which two ranks differ.
RankTraffic within_mesh(const Step& step, int64_t element_bytes, const std::vector<Link>& links, const Dims& coord) {
  const Box held = step.from.box_at(coord), wanted = step.to.box_at(coord);
  Dims pins = coord;
  for (size_t m = 0; m < pins.size(); ++m)
    if (step.from.placements()[m].is_shard() || step.reduces_along(m)) pins[m] = -1;
  RankTraffic result;
  Tally arriving_inside{intersect(held, wanted).numel(), 0}, leaving_inside = arriving_inside;
  arriving_inside.boxes = leaving_inside.boxes = arriving_inside.elements > 0 ? 1 : 0;
  for (size_t m = pins.size(); m-- > 0;) {
    Dims shared = coord;  // pins the ranks that agree with this one on the mesh dims before m
    for (size_t later = m; later < pins.size(); ++later) shared[later] = pins[later];
    const Tally arriving = Tallying(step.from, wanted, shared).run();
    const Tally leaving = Tallying(step.to, held, shared).run();
    const int64_t received = (arriving.elements - arriving_inside.elements) * element_bytes;
    const int64_t sent = (leaving.elements - leaving_inside.elements) * element_bytes;
    const int64_t n_messages = arriving.boxes - arriving_inside.boxes;
    result.received += received;
    result.sent += sent;
    result.n_messages += n_messages;
    result.seconds += transfer_seconds(link_along(links, m), n_messages, std::max(received, sent));
    arriving_inside = arriving;
    leaving_inside = leaving;
  }
  return result;
}

/// Counts box by box, for moves to another mesh and for layouts in pieces.
RankTraffic by_transfers(const Step& step, int64_t element_bytes, const std::vector<Link>& links, int64_t rank) {
  RankTraffic result;
  const Transfers part = transfers(step, rank);
  int64_t last = rank;
  for (const Transfer& receive : part.receives) {
    if (receive.rank == rank) continue;
    result.received += receive.box.numel() * element_bytes;
    result.n_messages += receive.rank != last;
    last = receive.rank;
  }
  for (const Transfer& send : part.sends) result.sent += send.box.numel() * element_bytes;
  result.seconds = transfer_seconds(link_along(links, 0), result.n_messages, std::max(result.received, result.sent));
  return result;
}

RankTraffic exchange(const Step& step, int64_t element_bytes, const std::vector<Link>& links, int64_t rank) {
  const auto coord = step.from.grid().coord_of(rank);
  const bool is_single = step.from.has_one_box_each() && step.to.has_one_box_each();
  const bool is_within = coord && is_single && step.from.grid() == step.to.grid();
  RankTraffic result =
      is_within ? within_mesh(step, element_bytes, links, *coord) : by_transfers(step, element_bytes, links, rank);
  const int64_t wanted = volume(step.to.boxes(rank));
  result.bound = step.kind == Step::Kind::kReduce
                     ? (step.from.grid().shape[step.mesh_dim] - 1) * wanted * element_bytes
                     : (wanted - common_volume(step.to.boxes(rank), step.from.boxes(rank))) * element_bytes;
  return result;
}

/// The bytes of `n_ranks` ranks, extrapolated from `n` of them.
int64_t scaled_up(int64_t n_bytes, int64_t n, int64_t n_ranks) {
  __extension__ typedef __int128 Wide;  // the product may exceed 64 bits even if the result does not
  return static_cast<int64_t>(Wide{n_bytes} * n_ranks / n);
}

RankTraffic all_reduction(const Step& step, int64_t element_bytes, const std::vector<Link>& links, int64_t rank) {
  const int64_t n = step.n_terms();
  RankTraffic result;
  result.received = result.sent = result.bound = 2 * volume(step.from.boxes(rank)) * element_bytes * (n - 1) / n;
  result.n_messages = result.received > 0 ? 2 * (n - 1) : 0;
  const auto n_dims = static_cast<int64_t>(step.from.grid().shape.size());
  for (int64_t m = 0; m < n_dims; ++m)  // a ring over all ranks is as slow as its slowest link
    if (step.mesh_dim < 0 || step.mesh_dim == m)
      result.seconds =
          std::max(result.seconds, transfer_seconds(link_along(links, m), result.n_messages, result.received));
  return result;
}

}  // namespace

RankTraffic traffic(const Step& step, int64_t element_bytes, const std::vector<Link>& links, int64_t rank) {
  if (!step.from.grid().coord_of(rank) && !step.to.grid().coord_of(rank)) return {};
  switch (step.kind) {
    case Step::Kind::kExchange:
    case Step::Kind::kReduce: {
      RankTraffic result = exchange(step, element_bytes, links, rank);
      result.buffer_bytes = (result.received + result.sent) / step.n_rounds;
      return result;
    }
    case Step::Kind::kAllReduce:
      return step.from.grid().coord_of(rank) ? all_reduction(step, element_bytes, links, rank) : RankTraffic{};
    case Step::Kind::kMakePartial:
      return {};
  }
  return {};
}

RankTraffic traffic(const Plan& plan, int64_t rank) {
  RankTraffic result;
  bool is_reduced = false;
  for (const Step& step : plan.steps) {
    const RankTraffic part = traffic(step, plan.element_bytes, plan.options.links, rank);
    result.sent += part.sent;
    result.received += part.received;
    result.bound += part.bound;
    result.buffer_bytes = std::max(result.buffer_bytes, part.buffer_bytes);
    result.n_messages += part.n_messages;
    result.seconds += part.seconds;
    is_reduced |= step.combines_terms();
  }
  if (!is_reduced) {
    const auto wanted = plan.destination.boxes(rank);
    result.bound = (volume(wanted) - common_volume(wanted, plan.source.boxes(rank))) * plan.element_bytes;
  }
  return result;
}

std::vector<int64_t> ranks_of(const Plan& plan) {
  const RankGrid &from = plan.source.grid(), &to = plan.destination.grid();
  std::vector<int64_t> ranks = from.ranks;
  if (from == to) return ranks;
  for (const int64_t rank : to.ranks)
    if (!from.coord_of(rank)) ranks.push_back(rank);
  return ranks;
}

std::vector<std::pair<int64_t, RankTraffic>> simulate(const Plan& plan) {
  std::vector<std::pair<int64_t, RankTraffic>> result;
  for (const int64_t rank : ranks_of(plan)) result.emplace_back(rank, traffic(plan, rank));
  return result;
}

std::vector<int64_t> evenly_spaced(const std::vector<int64_t>& ranks, size_t n) {
  n = std::min(n, ranks.size());
  std::vector<int64_t> chosen;
  for (size_t i = 0; i < n; ++i) chosen.push_back(ranks[i * ranks.size() / n]);
  return chosen;
}

Summary summarize(const Plan& plan, int64_t n_samples) {
  const std::vector<int64_t> all = ranks_of(plan);
  const std::vector<int64_t> ranks = n_samples > 0 ? evenly_spaced(all, n_samples) : all;
  const auto n = static_cast<int64_t>(ranks.size()), n_ranks = static_cast<int64_t>(all.size());
  Summary result;
  result.route = plan.route();
  result.most_loaded_rank = ranks.front();
  for (const int64_t rank : ranks) {
    const RankTraffic part = traffic(plan, rank);
    result.received += part.received;
    result.bound += part.bound;
    result.buffer_bytes = std::max(result.buffer_bytes, part.buffer_bytes);
    result.seconds = std::max(result.seconds, part.seconds);
    if (part.received <= result.most_received) continue;
    result.most_received = part.received;
    result.most_loaded_rank = rank;
  }
  if (n < n_ranks) {
    result.received = scaled_up(result.received, n, n_ranks);
    result.bound = scaled_up(result.bound, n, n_ranks);
  }
  if (result.received > 0)
    for (const Step& step : plan.steps)
      if (sends(step)) result.n_rounds += step.n_rounds;
  return result;
}

std::string to_string(const Summary& summary) {
  return fmt::format("{} | {} round{} | received {}, bound {}, ratio {:.2f} | most loaded rank {}: {} | buffers {}",
                     summary.route, summary.n_rounds, summary.n_rounds == 1 ? "" : "s",
                     detail::with_commas(summary.received), detail::with_commas(summary.bound), summary.ratio(),
                     summary.most_loaded_rank, detail::with_commas(summary.most_received),
                     detail::with_commas(summary.buffer_bytes));
}

std::string to_string(const Plan& plan) { return to_string(summarize(plan)); }

}  // namespace shardwise
