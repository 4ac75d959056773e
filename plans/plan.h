// plans/plan.h: how a tensor gets from one layout to another, as a value. Pure: no process group, no tensors.
//
//   Shard(0) -> Shard(1):              all-to-all
//   Shard(0) -> Replicate():           all-gather
//   Partial(sum) -> Shard(0):          reduce-scatter
//   [Partial, Shard(0)] -> [R, R]:     all-reduce + all-gather
//   Replicate() -> Shard(0):           slice (no message)
#pragma once

#include "placements/layout.h"

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// What messages between two ranks cost.
struct Link {
  double latency_us = 20;  // per message
  double gb_per_s = 10;    // 1e9 bytes per second, each way
  bool operator==(const Link&) const = default;
};

/// Throws: c10::ValueError in the name of `op` for a link of negative latency, or of a rate that is not above 0.
void check_links(const char* op, const std::vector<Link>& links);

/// Everything a plan depends on besides the two layouts, and so part of any cache's key.
struct PlanOptions {
  enum class Objective : uint8_t {
    kBytes,  // the fewest bytes received: one exchange, and one reduction per Partial mesh dim that ends
    kTime,   // the least time over `links`: a sequence of mesh dims, found by shortest path
  };
  Objective objective = Objective::kBytes;
  /// Per mesh dim of the source: between ranks whose coordinates differ there first. The default link where it is empty.
  std::vector<Link> links = {};
  /// Bytes of message buffers that a rank may hold at once, but for one slab of a box's longest dim; then each exchange goes in that
  /// many smaller rounds. 0: no limit.
  int64_t memory_cap = 0;
  bool operator==(const PlanOptions&) const = default;
};

/// From one layout to the next.
struct Step {
  enum class Kind : uint8_t {
    kExchange,     // boxes go from who has them to who needs them
    kReduce,       // an exchange whose arrivals from all along `mesh_dim` are combined: Partial -> Shard
    kAllReduce,    // Partial -> Replicate along `mesh_dim`
    kMakePartial,  // Replicate -> Partial along `mesh_dim`: no message
  };
  Kind kind = Kind::kExchange;
  Layout from;
  Layout to;
  int mesh_dim = -1;  // that is reduced or made Partial; -1 of an exchange
  Reduce reduce = Reduce::kSum;
  int64_t n_rounds = 1;  // rounds into which each box is split, for the memory cap
};

/// "all-to-all", "all-gather", "reduce-scatter", "all-reduce", "permute", "slice", "make-partial".
std::string name_of(const Step& step);

/// Layouts, options and the steps between. The same on every rank that makes it of the same arguments.
struct Plan {
  Layout source;
  Layout destination;
  int64_t element_bytes = 0;
  PlanOptions options;
  std::vector<Step> steps;

  /// The names of the steps that send something, joined by " + "; "slice" or "none" where none does.
  std::string route() const;
};

/// Plans the move. A layout's mesh may be any arrangement of any ranks of the world; ranks of neither hold nothing.
///
/// Under kBytes every byte of a destination box that its rank does not hold is received once (the bound, where nothing is
/// Partial), and reductions are at the reduce-scatter and all-reduce bounds. Ties are broken in written order: fewer
/// steps first, then lower mesh dims, then Replicate before Shard, then lower tensor dims.
///
/// Throws: c10::ValueError where the sizes differ, or options do not fit. Cost: O(mesh dims) layouts under kBytes, and of each
/// rank's traffic() with a memory cap; under kTime a search over the placements of each mesh dim, which takes the route of kBytes where
/// 1,000 layouts on the way do not reach the destination (meshes of more than five dims).
Plan plan(const Layout& source, const Layout& destination, int64_t element_bytes, const PlanOptions& options = {});

}  // namespace shardwise
