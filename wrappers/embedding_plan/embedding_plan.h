// wrappers/embedding_plan/embedding_plan.h: which rank holds which part of which embedding table. A value, pure: no tensors, no process
// group.
//
//   tables + ranks + options -> plan_embeddings() -> EmbeddingPlan: per table its treatment and slices, per rank its groups of slices
#pragma once

#include "placements/box.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

/// What becomes of the rows of one sample: all of them, or one row.
enum class Combiner : uint8_t { kNone, kSum, kMean, kMax };

/// "none", "sum", "mean", "max".
std::string_view to_string(Combiner combiner);
/// The reverse. Throws: c10::ValueError naming the four words.
Combiner combiner_from_string(std::string_view name);

/// One table: [n_rows, n_columns].
struct TableConfig {
  std::string name;
  int64_t n_rows = 0;
  int64_t n_columns = 0;
  std::string dtype = "float32";  // as torch names it, without "torch."
  Combiner combiner = Combiner::kSum;
  double ids_per_sample = 1;  // of all its inputs together, on average
  double skew = 0;            // of ids: the exponent of Zipf's law; 0: uniform

  int64_t n_elements() const { return n_rows * n_columns; }
};

enum class Treatment : uint8_t {
  kReplicated,     // whole on every rank (data-parallel)
  kTableParallel,  // whole columns on some ranks: one slice, or several of columns
  kRowParallel,    // rows over all ranks
};

/// A box of one table on one rank, and its place among the rows of its group there.
struct TableSlice {
  size_t table = 0;  // index into EmbeddingPlan::tables
  int64_t rank = 0;  // in [0, n_ranks)
  Interval rows;     // of the table
  Interval columns;
  size_t group = 0;       // index into RankEmbeddings::groups of `rank`
  int64_t first_row = 0;  // of the slice, among the group's rows: the offset that its ids get (D5)
};

struct TablePlan {
  Treatment treatment = Treatment::kReplicated;
  /// By first row, then first column. A replicated table has one per rank.
  std::vector<TableSlice> slices;
  std::string reason;  // why it is where it is, one sentence
};

}  // namespace shardwise
