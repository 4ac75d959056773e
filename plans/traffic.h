// plans/traffic.h: a plan's cost for each rank, computed without listing messages, so that plans of 65,536 ranks are feasible.
//
//   [4096, 1024] float32, Shard(0) -> Shard(1) on 4 ranks: each receives 3,145,728 bytes, the bound, in 3 messages
#pragma once

#include "plans/plan.h"

namespace shardwise {

/// The link of a mesh dim. The last link stands for all later dims; the default link is used if `links` is empty.
const Link& link_along(const std::vector<Link>& links, size_t mesh_dim);
/// At most `n` of `ranks`, evenly spaced.
std::vector<int64_t> evenly_spaced(const std::vector<int64_t>& ranks, size_t n);
/// The number of ranks whose traffic a search for a route computes, as a sample of all ranks.
inline constexpr size_t kSampledRanks = 64;

/// The time of `n_messages` messages with `n_bytes` in total over `link`: the latency of each, plus the bytes over the bandwidth.
double transfer_seconds(const Link& link, int64_t n_messages, int64_t n_bytes);

/// Whether an all-reduce of rows sends less than each rank's rows sent to all others. `n_named`: the number of distinct rows of a rank, summed over
/// the ranks; `n_distinct`: that of all ranks together. An all-reduce sends each of these twice.
template <class Number>
bool is_reduced(Number n_named, Number n_distinct) {
  return 2 * n_distinct < n_named;
}

/// One rank's share of a plan. Bytes that stay on the rank do not count; an all-reduce counts as a ring's 2 (n-1)/n of the piece.
struct RankTraffic {
  int64_t sent = 0;
  int64_t received = 0;
  int64_t bound = 0;         // the least it must receive: missing bytes of its boxes, or the reductions' bounds
  int64_t buffer_bytes = 0;  // most held in message buffers at once, beyond source and destination pieces
  int64_t n_messages = 0;    // messages received
  double seconds = 0;        // by the options' links: per step, the latencies plus the larger direction
};

/// All zero for a rank in neither mesh. Cost: O(mesh dims * tensor dims), plus the ranks along mesh dims with explicit shard sizes;
/// O(pieces) if an EnumerableShard takes part.
RankTraffic traffic(const Plan& plan, int64_t rank);
/// The traffic of one step.
RankTraffic traffic(const Step& step, int64_t element_bytes, const std::vector<Link>& links, int64_t rank);

/// The ranks of both meshes: those of source.grid() in its order, then the ranks that are in the destination's grid only.
std::vector<int64_t> ranks_of(const Plan& plan);

/// A plan's cost over all ranks.
struct Summary {
  std::string route;
  int64_t n_rounds = 0;  // the rounds of all steps that send messages
  int64_t received = 0;  // bytes, all ranks together
  int64_t bound = 0;
  int64_t most_loaded_rank = 0;  // the first rank that receives the most
  int64_t most_received = 0;
  int64_t buffer_bytes = 0;  // of the rank that needs the most
  double seconds = 0;        // of the slowest rank

  /// Bytes received over the bound; 1 if both are 0.
  double ratio() const { return bound == 0 ? 1.0 : static_cast<double>(received) / static_cast<double>(bound); }
};

/// Cost: traffic() of every rank. `n_samples` > 0 uses only that many evenly spaced ranks and scales the totals up.
Summary summarize(const Plan& plan, int64_t n_samples = 0);

/// Every rank's traffic, in the order of ranks_of().
std::vector<std::pair<int64_t, RankTraffic>> simulate(const Plan& plan);

/// "all-to-all | 1 round | received 12,582,912, bound 12,582,912, ratio 1.00 | most loaded rank 0: 3,145,728 | buffers 6,291,456".
std::string to_string(const Summary& summary);
std::string to_string(const Plan& plan);

}  // namespace shardwise
