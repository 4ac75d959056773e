// wrappers/embedding_plan/cost_balanced.h: the strategy that chooses treatments, slices and ranks by time. Pure.
//
// For targets from the bound upwards: each table gets the treatment with the least mean time per rank, among the treatments whose slices take at most
// a share of the target. Slices are placed, largest first, on the rank that finishes first and has room. Then tables of the rank that finishes last
// get more slices, or another treatment, while that helps. The result is the best plan found, the plans of the other strategies for the same options
// included.
#pragma once

#include "wrappers/embedding_plan/load_model.h"
#include "wrappers/embedding_plan/table_slice.h"

#include <vector>

namespace shardwise::detail {

/// The plan of each table, without groups and first rows. Deterministic.
///
/// Throws: c10::ValueError if no plan is found that keeps to memory_per_rank. The text names the bytes that a plan needs at least.
std::vector<TablePlan> balance_cost(const LoadModel& model, const EmbeddingPlanOptions& options);

}  // namespace shardwise::detail
