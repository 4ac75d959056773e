// wrappers/embedding_plan/slice_dealing.h: a rank for each slice of the table-parallel tables. Pure.
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

/// In the order of tables, then of columns: the first n_columns mod n_slices of a table are one wider.
std::vector<LooseSlice> loose_slices(const LoadModel& model, const std::vector<Slicing>& slicings);

/// The rank of each slice. Pre: `strategy` is not kCostBalanced. Cost: O(slices log slices).
std::vector<int64_t> deal(const std::vector<LooseSlice>& slices, int64_t n_ranks, EmbeddingStrategy strategy);

/// The plan of each table: slices that meet on a rank are merged, by laying a table's columns out in the order of its ranks' first slices.
/// Groups and first rows are left out.
std::vector<TablePlan> place(const std::vector<TableConfig>& tables, const std::vector<Slicing>& slicings,
                             const std::vector<LooseSlice>& slices, const std::vector<int64_t>& ranks, int64_t n_ranks);

}  // namespace shardwise::detail
