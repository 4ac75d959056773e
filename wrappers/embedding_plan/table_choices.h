// wrappers/embedding_plan/table_choices.h: what a planner may do with each table, and what each choice costs. Pure.
#pragma once

#include "wrappers/embedding_plan/load_model.h"
#include "wrappers/embedding_plan/slice_rules.h"

#include <optional>
#include <vector>

namespace shardwise::detail {

/// A choice for one table: its share of a rank's time and bytes, were it spread over all ranks evenly.
struct Choice {
  Treatment treatment = Treatment::kTableParallel;
  int64_t n_slices = 1;
  double seconds = 0;
  double n_bytes = 0;
  double first_seconds = 0;  // on rank 0, which has the first rows; 0 where another rank may have the slice
};

/// What a choice is worth: the mean over ranks of its seconds, weighed against those of rank 0, and a price per byte.
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
  /// In balanced parts; none where a part is over the limit.
  std::optional<Choice> row_parallel(const SliceLimit& limit) const;
  /// In the fewest slices that keep to the limit.
  std::optional<Choice> table_parallel(const SliceLimit& limit) const;
  /// In so many slices; none where there may not be as many.
  std::optional<Choice> in_slices(int64_t n_slices) const;
  /// In as many slices as there may be.
  std::optional<Choice> finest() const { return in_slices(most_slices_); }
  /// Of these the one that is worth least; none where no choice keeps to the limit.
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
