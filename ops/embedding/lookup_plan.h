// ops/embedding/lookup_plan.h: the placements of a lookup's ids and results, decided from layouts alone.
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
  Placements ids;                    // the ids' placements during the lookup
  Placements found;                  // of the rows that the ranks find, before they are moved
  Placements result;                 // of the final result
  std::vector<bool> exchange_along;  // mesh dims along which owners send the requested rows (all-to-all)
  bool ids_are_equal = false;  // ranks along them have equal ids: rows are sent only when the result moves, no requests
  SpecPtr rows;                // of the rows found: [ids..., columns], placed as `found`

  /// True if rows are requested from their owners; else all ranks look up, and their results are reduced.
  bool exchanges_rows() const;
  /// True if ids are sharded along all mesh dims of the exchange, so that each gradient row is on one rank of the exchange.
  bool splits_ids() const;
};

using LookupPlanPtr = std::shared_ptr<const LookupPlan>;

/// The plan of looking up `ids` in a table of layout `table`; results have the ids' dims and one more. The same on all ranks. `n_results`:
/// of pooled lookups, the number of bags.
/// Pre: one mesh, no Partial in `ids`, only linear ones in `table`. Cost: one probe of a per-thread cache; plans on a miss.
LookupPlanPtr plan_lookup(const SpecPtr& table, const SpecPtr& ids, const LookupOptions& options,
                          std::optional<int64_t> n_results = {});

/// The placements that the result's gradient must have, and those of the table's gradient, which is placed as the table, but Partial where a rank has
/// only part of the ids. `found`: LookupPlan::found. `grad`: the current placements of the gradient; on a mesh dim that replicates the table, a
/// gradient that is a Partial sum or mean stays as it is.
struct LookupBackwardPlan {
  Placements grad;
  Placements table;
};
LookupBackwardPlan plan_lookup_backward(const Spec& table, c10::ArrayRef<Placement> found,
                                        c10::ArrayRef<Placement> grad);

}  // namespace shardwise
