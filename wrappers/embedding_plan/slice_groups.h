// wrappers/embedding_plan/slice_groups.h: the slices of each rank, in groups that are looked up together, and their costs. Pure.
#pragma once

#include "wrappers/embedding_plan/embedding_plan.h"
#include "wrappers/embedding_plan/load_model.h"

#include <vector>

namespace shardwise::detail {

/// Fills in slices that a caller of arrange_embeddings() may leave out, sorts slices by rows, then columns, and checks that they cover each table
/// exactly once.
void complete_slices(const std::vector<TableConfig>& tables, int64_t n_ranks, std::vector<TablePlan>& table_plans);

/// Writes group and first_row into the slices, and returns each rank's groups and slices; loads are left out. Groups of replicated tables come first;
/// groups are ordered by their first table, slices of a group by table.
std::vector<RankEmbeddings> group_slices(const std::vector<TableConfig>& tables, int64_t n_ranks,
                                         std::vector<TablePlan>& table_plans);

std::vector<RankLoad> rank_loads(const LoadModel& model, const std::vector<TablePlan>& table_plans);

}  // namespace shardwise::detail
