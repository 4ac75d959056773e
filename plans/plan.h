// plans/plan.h: how a tensor gets from one layout to another, as a value. Pure: no process group, no tensors.
//
//   Shard(0) -> Shard(1):              all-to-all
//   Shard(0) -> Replicate():           all-gather
//   Partial(sum) -> Shard(0):          reduce-scatter
//   [Partial, Shard(0)] -> [R, R]:     all-reduce + all-gather
//   Replicate() -> Shard(0):           slice (no message)
#pragma once

#include "placements/layout.h"

#include <string>
#include <vector>

namespace shardwise {

/// The cost of messages between two ranks.
struct Link {
  double latency_us = 20;  // per message
  double gb_per_s = 10;    // 1e9 bytes per second, each way
  bool operator==(const Link&) const = default;
};

/// Throws: c10::ValueError in the name of `op` for a link with negative latency or a rate that is not above 0.
void check_links(const char* op, const std::vector<Link>& links);

/// Everything a plan depends on besides the two layouts; a cache of plans must have it in its key.
struct PlanOptions {
  enum class Objective : uint8_t {
    kBytes,  // fewest bytes received: one exchange, and one reduction per Partial mesh dim that ends
    kTime,   // least time over `links`: a sequence of changes of one mesh dim, found by shortest path
  };
  Objective objective = Objective::kBytes;
  /// One link per mesh dim of the source, between ranks whose coordinates differ there first. Empty: the default link for all.
  std::vector<Link> links = {};
  /// The most bytes of message buffers that a rank may hold at once; exchanges are split into smaller rounds to keep it. One slab of a
  /// box's longest dim is always allowed, even if it is larger. 0: no limit.
  int64_t memory_cap = 0;
  bool operator==(const PlanOptions&) const = default;
};

/// A change from one layout to the next.
struct Step {
  enum class Kind : uint8_t {
    kExchange,     // boxes go from ranks that have them to ranks that need them
    kReduce,       // an exchange that combines the boxes from all ranks along `mesh_dim`: Partial -> Shard
    kAllReduce,    // Partial -> Replicate along `mesh_dim`, or along all mesh dims in one message
    kMakePartial,  // Replicate -> Partial along `mesh_dim`: no message
  };
  Kind kind = Kind::kExchange;
  Layout from;
  Layout to;
  int mesh_dim =
      -1;  // the mesh dim that is reduced or made Partial; -1 for an exchange, and for an all-reduce over all ranks of the mesh
  Reduce reduce = Reduce::kSum;
  int64_t n_rounds =
      1;  // rounds into which each box is split, to keep the memory cap, or to hold one term of a large reduction at a time

  /// Boxes go from rank to rank, and are combined on arrival or not.
  bool has_boxes() const { return kind == Kind::kExchange || kind == Kind::kReduce; }
  /// The terms of several ranks become their reduction.
  bool combines_terms() const { return kind == Kind::kReduce || kind == Kind::kAllReduce; }
  bool makes_terms() const { return kind == Kind::kMakePartial; }
  /// How many ranks' terms an all-reduce combines.
  int64_t n_terms() const { return mesh_dim < 0 ? from.grid().size() : from.grid().shape[mesh_dim]; }
  /// Boxes come from all ranks along `m`, and are combined on arrival.
  bool reduces_along(size_t m) const { return kind == Kind::kReduce && static_cast<int>(m) == mesh_dim; }
};

/// "all-to-all", "all-gather", "reduce-scatter", "all-reduce", "permute", "slice", "make-partial".
std::string name_of(const Step& step);

/// Names of mesh dims, one per dim, or none.
struct MeshNames {
  std::vector<std::string> source, destination;
};

/// Two layouts, options and the steps between them. Every rank that plans with the same arguments gets the same plan.
struct Plan {
  Layout source;
  Layout destination;
  int64_t element_bytes = 0;
  PlanOptions options;
  std::vector<Step> steps;

  /// The names of the steps that send messages, joined by " + ". If none does: the names of all steps ("slice"), or "none" without steps.
  std::string route() const;
};

/// Plans the move. A layout's mesh may be any arrangement of any ranks of the world; ranks in neither mesh hold nothing.
///
/// Under kBytes every byte of a destination box that its rank does not hold is received once (the lower bound if nothing is Partial), and
/// reductions are at the reduce-scatter and all-reduce bounds. Ties are broken in this order: fewer steps first, then lower mesh dims, then
/// Replicate before Shard, then lower tensor dims.
///
/// Throws: c10::ValueError if the sizes differ or the options do not fit. Cost: under kBytes O(mesh dims) layouts, plus traffic() of each
/// rank if there is a memory cap. Under kTime a search over the placements of each mesh dim, which falls back to the route of kBytes if
/// 1,000 layouts do not reach the destination (meshes of more than five dims).
Plan plan(const Layout& source, const Layout& destination, int64_t element_bytes, const PlanOptions& options = {});

}  // namespace shardwise
