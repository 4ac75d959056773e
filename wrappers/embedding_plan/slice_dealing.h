// wrappers/embedding_plan/slice_dealing.h: assigns a rank to each slice of the table-parallel tables. Pure.
//
//   slices of 5, 4, 3, 3, 3 bytes on 2 ranks
//     round robin       0 1 0 1 0    11 and 7 bytes
//     forth and back    0 1 1 0 0    11 and 7
//     onto the lightest 0 1 1 0 1     8 and 10
#pragma once

#include "wrappers/embedding_plan/load_model.h"
#include "wrappers/embedding_plan/slice_rules.h"

#include <optional>
#include <vector>

namespace shardwise::detail {

/// A slice of columns of a table-parallel table, without its rank and place.
struct LooseSlice {
  size_t table = 0;
  int64_t n_columns = 0;
  int64_t n_bytes = 0;  // with optimizer state
  double seconds = 0;   // of its rank
};

/// Slices in the order of tables, then of columns. The first (n_columns mod n_slices) slices of a table are one column wider.
std::vector<LooseSlice> loose_slices(const LoadModel& model, const std::vector<Slicing>& slicings);

/// The rank of each slice. Pre: `strategy` is not kCostBalanced. Cost: O(slices log slices).
std::vector<int64_t> deal(const std::vector<LooseSlice>& slices, int64_t n_ranks, EmbeddingStrategy strategy);

/// The load that ranks have before slices are packed onto them, and the limit of bytes.
struct Ranks {
  Ranks(int64_t n_ranks, double memory) : seconds(n_ranks), n_bytes(n_ranks), memory(memory) {}

  std::vector<double> seconds;
  std::vector<double> n_bytes;
  double memory;  // infinity: no limit
};

struct Packed {
  std::vector<int64_t> ranks;  // by slice
  int64_t last_rank = 0;       // the rank that finishes last
  double seconds = 0;          // of the last rank
};

/// Packs slices so that the last rank finishes early. Slices are ordered by their share of `target` seconds or of the room for bytes, whichever is
/// larger, largest first. Each is put on the rank that finishes first and has room.
///
/// Returns nullopt if a slice fits nowhere. Cost: O(slices log).
std::optional<Packed> pack(const std::vector<LooseSlice>& slices, Ranks ranks, double target);

/// The plan of each table, without groups and first rows. Slices of a table on the same rank are merged: the table's columns are assigned in the
/// order of the ranks' first slices.
std::vector<TablePlan> place(const std::vector<TableConfig>& tables, const std::vector<Slicing>& slicings,
                             const std::vector<LooseSlice>& slices, const std::vector<int64_t>& ranks, int64_t n_ranks);

}  // namespace shardwise::detail
