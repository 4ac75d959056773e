// wrappers/embedding_plan/slice_rules.h: decides by thresholds which tables are replicated, sharded by rows, or table-parallel, and in how many
// column slices. Pure.
//
//   data_parallel_threshold 100, row_slice_threshold 1000, column_slice_threshold 300, on 4 ranks:
//     [10, 4]    40 elements   replicated
//     [50, 8]   400            table-parallel, 2 slices: the smallest power of two at which a slice has at most 300
//     [250, 4] 1000            row-parallel
#pragma once

#include "wrappers/embedding_plan/plan_options.h"
#include "wrappers/embedding_plan/table_config.h"
#include "wrappers/embedding_plan/table_slice.h"

#include <string>
#include <vector>

namespace shardwise::detail {

/// How one table is divided, before ranks are chosen.
struct Slicing {
  Treatment treatment = Treatment::kTableParallel;
  int64_t n_slices = 1;  // of columns; 1 unless table-parallel
  std::string reason;
};

/// The treatment that the thresholds require, tried in this order: replicated, row-parallel, table-parallel.
Treatment treatment_by_thresholds(const TableConfig& table, const EmbeddingPlanOptions& options);

/// N, the smallest power of two such that n_elements / N is at most `threshold`; then min(N, n_ranks, n_columns).
int64_t n_column_slices(const TableConfig& table, int64_t threshold, int64_t n_ranks);

/// The slicing of each table. Without a column threshold, and with fewer table-parallel tables than ranks, the table with the largest slices (the
/// first among equals) gets twice as many slices, until there are as many slices as ranks.
///
/// Throws: c10::ValueError, naming the threshold to lower, if table-parallel tables have fewer slices than there are ranks.
std::vector<Slicing> slice_by_thresholds(const std::vector<TableConfig>& tables, int64_t n_ranks,
                                         const EmbeddingPlanOptions& options);

}  // namespace shardwise::detail
