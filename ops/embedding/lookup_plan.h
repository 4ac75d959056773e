// ops/embedding/lookup_plan.h: where ids must lie for a lookup, and where its results come to lie; decided from layouts alone.
//
//   table on a mesh dim    ids there    result there
//   Shard(0), (1), pieces  Shard        as the ids, by one of the two exchanges of ops/embedding/lookup_options.h
//   Shard(0), pieces       Replicate    Partial(sum), and nothing is sent: each rank's term is its own rows
//   Shard(1)               Replicate    Shard(last dim), and nothing is sent
//   Replicate              any          as the ids: nothing is sent
//   Partial                Replicate    Partial likewise; reduced to the ids where these were sharded
#pragma once

#include "ops/embedding/lookup_options.h"
#include "runtime/api/dtensor.h"

#include <memory>
#include <optional>
#include <vector>

namespace shardwise {

struct LookupPlan {
  Placements ids;                    // where ids are looked up
  Placements found;                  // of what each rank finds there, before it is moved
  Placements result;                 // where it goes in the end
  std::vector<bool> exchange_along;  // mesh dims along which owners send the requested rows (all-to-all) ...
  bool ids_are_equal = false;  // ... and have the same ids: no requests are sent, and rows only when the result moves
  SpecPtr rows;                // of what is found: [ids..., columns]

  /// True where rows are requested from their owners; else all ranks look up, and their results are reduced.
  bool exchanges_rows() const;
  /// True where ids are sharded along all mesh dims of the exchange, so that each gradient row is on one of its ranks.
  bool splits_ids() const;
};

using LookupPlanPtr = std::shared_ptr<const LookupPlan>;

/// The plan of looking up `ids` in a table of layout `table`; results have the ids' dims and one more. The same on all ranks. `n_results`:
/// of pooled lookups, the number of bags.
/// Pre: one mesh, no Partial in `ids`, only linear ones in `table`. Cost: one probe of a per-thread cache; plans on a miss.
LookupPlanPtr plan_lookup(const SpecPtr& table, const SpecPtr& ids, const LookupOptions& options,
                          std::optional<int64_t> n_results = {});

/// Where the result's gradient must lie, and how the table's gradient then lies: as the table, but Partial where a rank has only part of
/// the ids. `found`: where the results were found. `grad` says where the gradient lies now: sums pass through replicas.
struct LookupBackwardPlan {
  Placements grad;
  Placements table;
};
LookupBackwardPlan plan_lookup_backward(const Spec& table, c10::ArrayRef<Placement> found,
                                        c10::ArrayRef<Placement> grad);

}  // namespace shardwise
