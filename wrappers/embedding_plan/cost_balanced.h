// wrappers/embedding_plan/cost_balanced.h: the strategy that chooses treatments, slices and ranks by time. Pure.
//
// For targets from the bound upwards, each table gets the treatment of the least mean time per rank among those whose slices keep to
// a share of the target; slices go largest first onto the rank that is done first and has room; then slices move and change
// places between the rank that is done last and those that are done early. The best plan found counts, and what the
// other strategies make of the same options is among them.
#pragma once

#include "wrappers/embedding_plan/load_model.h"
#include "wrappers/embedding_plan/table_slice.h"

#include <vector>

namespace shardwise::detail {

/// Without groups and first rows. Deterministic.
///
/// Throws: c10::ValueError where no plan is found that keeps to memory_per_rank, with the bytes that one needs at least.
std::vector<TablePlan> balance_cost(const LoadModel& model, const EmbeddingPlanOptions& options);

}  // namespace shardwise::detail
