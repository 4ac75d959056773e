// wrappers/embedding_plan/table_choices.h: the treatments that a planner may choose for each table, and their costs. Pure.
#pragma once

#include "wrappers/embedding_plan/load_model.h"
#include "wrappers/embedding_plan/slice_rules.h"

#include <optional>
#include <vector>

namespace shardwise::detail {

/// A choice for one table, and its mean time and bytes per rank.
struct Choice {
  Treatment treatment = Treatment::kTableParallel;
  int64_t n_slices = 1;
  double seconds = 0;
  double n_bytes = 0;
  double first_seconds = 0;  // on rank 0, which has the first rows; 0 if another rank may have the slice
};

/// The price of a choice: a weighted sum of its mean seconds over ranks and its seconds on rank 0, and a price per byte.
struct Prices {
  double first_rank = 0;  // weight of rank 0's own seconds, in [0, 1]
  double byte = 0;        // seconds
  double of(const Choice& choice) const {
    return (1 - first_rank) * choice.seconds + first_rank * choice.first_seconds + byte * choice.n_bytes;
  }
};

/// Limits on any one slice.
struct SliceLimit {
  double seconds = 0;
  double n_bytes = 0;
};

/// The choices that the options leave for one table.
class TableChoices {
 public:
  /// `may_replicate`, `may_shard`: further limits. Cost: O(1).
  TableChoices(const LoadModel& model, size_t table, const EmbeddingPlanOptions& options, bool may_replicate,
               bool may_shard);

  bool any() const { return may_replicate_ || may_shard_rows_ || may_be_table_parallel_; }
  std::optional<Choice> replicated() const;
  /// Row-parallel in balanced parts; nullopt if a part exceeds the limit.
  std::optional<Choice> row_parallel(const SliceLimit& limit) const;
  /// Table-parallel in the fewest slices that keep to the limit.
  std::optional<Choice> table_parallel(const SliceLimit& limit) const;
  /// Table-parallel in `n_slices` slices; nullopt if the options do not allow as many.
  std::optional<Choice> in_slices(int64_t n_slices) const;
  /// Table-parallel in as many slices as the options allow.
  std::optional<Choice> finest() const { return in_slices(most_slices_); }
  /// The choice with the lowest price; nullopt if no choice keeps to the limit.
  std::optional<Choice> cheapest(const SliceLimit& limit, const Prices& prices) const;

 private:
  bool may_replicate_, may_shard_rows_, may_be_table_parallel_;
  double n_ranks_;
  int64_t n_columns_, most_slices_;
  double replicated_, rows_total_, rows_most_;  // seconds
  LoadModel::SliceSeconds whole_;
  double n_bytes_, column_bytes_, row_state_bytes_, rows_most_bytes_;
};

/// Per table.
std::vector<TableChoices> table_choices(const LoadModel& model, const EmbeddingPlanOptions& options, bool may_replicate,
                                        bool may_shard);

}  // namespace shardwise::detail
