// wrappers/embedding_plan/slice_dealing.h: assigns a rank to each slice of the table-parallel tables. Pure.
//
//   slices of 5, 4, 3, 3, 3 bytes on 2 ranks
//     round robin       0 1 0 1 0    11 and 7 bytes
//     forth and back    0 1 1 0 0    11 and 7
//     onto the lightest 0 1 1 0 1     8 and 10
#pragma once

#include "wrappers/embedding_plan/load_model.h"
#include "wrappers/embedding_plan/slice_rules.h"

#include <vector>

namespace shardwise::detail {

/// A slice of columns of a table-parallel table, without its rank and place.
struct LooseSlice {
  size_t table = 0;
  int64_t n_columns = 0;
  int64_t n_bytes = 0;  // with optimizer state
};

/// Slices in the order of tables, then of columns. The first (n_columns mod n_slices) slices of a table are one column wider.
std::vector<LooseSlice> loose_slices(const LoadModel& model, const std::vector<Slicing>& slicings);

/// The rank of each slice. Pre: `strategy` is not kCostBalanced. Cost: O(slices log slices).
std::vector<int64_t> deal(const std::vector<LooseSlice>& slices, int64_t n_ranks, EmbeddingStrategy strategy);

/// The plan of each table, without groups and first rows. Slices of a table on the same rank are merged: the table's columns are assigned in the
/// order of the ranks' first slices.
std::vector<TablePlan> place(const std::vector<TableConfig>& tables, const std::vector<Slicing>& slicings,
                             const std::vector<LooseSlice>& slices, const std::vector<int64_t>& ranks, int64_t n_ranks);

}  // namespace shardwise::detail
