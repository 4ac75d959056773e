// ops/embedding/lookup_plan.h: where ids must lie for a lookup, and where its results come to lie; decided from layouts alone.
//
//   table on a mesh dim    ids there    result there
//   Shard(0), (1), pieces  cut          as the ids, by one of the two exchanges of ops/embedding/lookup_options.h
//   Shard(0), pieces       Replicate    Replicate: each row named is sent once to each rank (or, where ids are cut along another
//                                       dim that cuts the table, reduced). Bags, and by the other exchange: Partial(sum),
//                                       and nothing is sent
//   Shard(1)               Replicate    Shard(last dim), and nothing is sent; Replicate where the all-to-all is asked for by name
//   Replicate              as they are  as the ids: nothing is sent
//   Partial                Replicate    Partial likewise; where ids were cut, reduced to them
#pragma once

#include "ops/embedding/lookup_options.h"
#include "runtime/api/dtensor.h"

#include <optional>
#include <vector>

namespace shardwise {

struct LookupPlan {
  Placements ids;          // where ids are looked up
  Placements found;        // of what each rank finds there, before it is moved
  Placements result;       // where it goes in the end
  std::vector<bool> asks;  // mesh dims along which rows come from their owners (all-to-all) ...
  bool are_known = false;  // ... who have the same ids, so that nobody need ask

  bool asks_any() const;  // instead of lookups by all whose results are reduced
};

/// The plan of looking up `ids` in a table of layout `table`; results have the ids' dims and one more. The same on all ranks. `n_results`:
/// how many rows are left of the ids' once they are pooled, where they are.
/// Pre: one mesh, no Partial in `ids`, none but linear ones in `table`.
LookupPlan plan_lookup(const Spec& table, const Spec& ids, LookupExchange exchange,
                       std::optional<int64_t> n_results = {});

/// Where the result's gradient must lie for the table's, and how that then lies: as the table, but Partial where only part of the ids is at
/// hand. `grad` says where it lies now: sums pass through replicas.
struct LookupBackwardPlan {
  Placements grad;
  Placements table;
};
LookupBackwardPlan plan_lookup_backward(const Spec& table, const LookupPlan& plan, c10::ArrayRef<Placement> grad);

}  // namespace shardwise
