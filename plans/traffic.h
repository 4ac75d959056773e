// plans/traffic.h: what a plan costs each rank, counted without listing messages; plans of 65,536 ranks included.
//
//   [4096, 1024] float32, Shard(0) -> Shard(1) on 4 ranks: each receives 3,145,728 bytes, the bound, in 3 messages
#pragma once

#include "plans/plan.h"

namespace shardwise {

/// The link of a mesh dim: the last one stands for all later dims; the default link where `links` is empty.
const Link& link_along(const std::vector<Link>& links, size_t mesh_dim);
/// Of `ranks` at most `n`, evenly spaced.
std::vector<int64_t> evenly_spaced(const std::vector<int64_t>& ranks, size_t n);
/// How many ranks a search for a route looks at: their traffic stands for all.
inline constexpr size_t kSampledRanks = 64;

/// Latencies and bandwidth of messages over `link` that carry `n_bytes` together.
double transfer_seconds(const Link& link, int64_t n_messages, int64_t n_bytes);

/// One rank's share of a plan. Bytes exclude what stays on the rank; an all-reduce counts as a ring's 2 (n-1)/n of the piece.
struct RankTraffic {
  int64_t sent = 0;
  int64_t received = 0;
  int64_t bound = 0;  // what must be received: the bytes of its boxes that it does not hold, or the reductions' bounds
  int64_t buffer_bytes = 0;  // most held in message buffers at once, beyond source and destination pieces
  int64_t n_messages = 0;    // received
  double seconds = 0;        // by the options' links: per step, latencies plus the larger of both directions
};

/// All zero for a rank of neither mesh. Cost: O(mesh dims * tensor dims), plus the ranks along mesh dims with explicit shard sizes;
/// O(pieces) where an EnumerableShard takes part.
RankTraffic traffic(const Plan& plan, int64_t rank);
/// The same of one step.
RankTraffic traffic(const Step& step, int64_t element_bytes, const std::vector<Link>& links, int64_t rank);

/// Of both meshes: those of source.grid() in its order, then those of the destination's that are not among them.
std::vector<int64_t> ranks_of(const Plan& plan);

/// A plan's cost over all ranks.
struct Summary {
  std::string route;
  int64_t n_rounds = 0;  // steps that send something, times the rounds of each
  int64_t received = 0;  // bytes, all ranks together
  int64_t bound = 0;
  int64_t most_loaded_rank = 0;  // the first that receives most
  int64_t most_received = 0;
  int64_t buffer_bytes = 0;  // the most of any rank
  double seconds = 0;        // the slowest rank's

  /// Bytes received over the bound; 1 where both are nothing.
  double ratio() const { return bound == 0 ? 1.0 : static_cast<double>(received) / static_cast<double>(bound); }
};

/// Cost: traffic() of every rank; with `n_samples` > 0 of that many ranks, evenly spaced (totals are then scaled up).
Summary summarize(const Plan& plan, int64_t n_samples = 0);

/// Every rank's traffic, in the order of ranks_of().
std::vector<std::pair<int64_t, RankTraffic>> simulate(const Plan& plan);

/// "all-to-all | 1 round | received 12,582,912, bound 12,582,912, ratio 1.00 | most loaded rank 0: 3,145,728 | buffers 6,291,456".
std::string to_string(const Summary& summary);
std::string to_string(const Plan& plan);

}  // namespace shardwise
