// wrappers/embedding_plan/embedding_plan.h: which rank holds which part of which embedding table. A value, pure: no tensors, no process
// group.
//
//   tables + ranks + options -> plan_embeddings() -> EmbeddingPlan: a treatment and slices per table, groups of slices per rank
#pragma once

#include "wrappers/embedding_plan/plan_options.h"
#include "wrappers/embedding_plan/table_config.h"
#include "wrappers/embedding_plan/table_slice.h"

#include <cstdint>
#include <string>
#include <vector>

namespace shardwise {

/// Slices of one rank that are looked up together (D5): slices of equal width, dtype and combiner, stacked by rows. Replicated tables have groups of
/// their own, because their gradients are averaged and those of other tables are not. These groups come first and are equal on every rank.
struct EmbeddingGroup {
  bool is_replicated = false;
  int64_t n_columns = 0;  // of the slices
  std::string dtype;
  Combiner combiner = Combiner::kSum;
  int64_t n_rows = 0;  // of all slices together
  bool operator==(const EmbeddingGroup&) const = default;
};

/// The load of one rank in a step, by the model of load_model.h.
struct RankLoad {
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;  // of the optimizer
  double lookups = 0;  // rows read: rows that ranks request, once per requesting rank, and rows of replicated tables
  double exchange_bytes = 0;  // bytes over links to or from this rank: ids, vectors, gradients, all-reduce
  double seconds = 0;

  int64_t n_bytes() const { return weight_bytes + state_bytes; }
  RankLoad& operator+=(const RankLoad& other) {
    weight_bytes += other.weight_bytes;
    state_bytes += other.state_bytes;
    lookups += other.lookups;
    exchange_bytes += other.exchange_bytes;
    seconds += other.seconds;
    return *this;
  }
  bool operator==(const RankLoad&) const = default;
};

struct RankEmbeddings {
  std::vector<EmbeddingGroup> groups;
  /// Slices that are not replicated, as (table, index of the slice), ordered by table.
  std::vector<std::pair<size_t, size_t>> sharded;
  RankLoad load;
  bool operator==(const RankEmbeddings&) const = default;
};

/// The place of every slice, its cost, and the reasons. Equal on every rank that makes it from equal arguments.
struct EmbeddingPlan {
  std::vector<TableConfig> tables;
  int64_t n_ranks = 0;
  EmbeddingPlanOptions options;
  std::vector<TablePlan> table_plans;  // per table
  std::vector<RankEmbeddings> ranks;   // per rank
  /// A lower bound of seconds() over all plans that keep to the options, see load_bound.h.
  double bound_seconds = 0;

  /// Throws: c10::IndexError for a rank that is not in the plan.
  void check_rank(int64_t rank) const;
  /// The slices on a rank: first of replicated tables, then of all others, ordered by group, then by first row.
  std::vector<TableSlice> slices_on(int64_t rank) const;
  /// The rank with the longest step, the first among equals.
  int64_t most_loaded_rank() const;
  /// The seconds of the most loaded rank.
  double seconds() const { return ranks[most_loaded_rank()].load.seconds; }
  /// The rank with the most bytes, the first among equals.
  int64_t heaviest_rank() const;

  bool operator==(const EmbeddingPlan&) const = default;
};

/// Places tables on ranks. Thresholds choose treatments (slice_rules.h), and the strategy assigns slices to ranks; kCostBalanced chooses both
/// (cost_balanced.h).
///
/// Throws: c10::ValueError for invalid tables and options, for fewer slices than ranks (naming the threshold to lower), and if a rank needs more than
/// memory_per_rank. Cost: O((slices + ranks) log), and less than 10 s for 10,000 tables on 4,096 ranks under kCostBalanced.
EmbeddingPlan plan_embeddings(const std::vector<TableConfig>& tables, int64_t n_ranks,
                              const EmbeddingPlanOptions& options = {});

/// Makes a plan of slices that the caller chose: computes groups, first rows, loads and bound. Slices need a rank, rows and columns. For replicated
/// tables, and row-parallel tables in balanced parts, slices may be left out.
///
/// Throws: c10::ValueError naming the table, if its slices are not on ranks of the plan, overlap, or leave out a part of it.
EmbeddingPlan arrange_embeddings(const std::vector<TableConfig>& tables, int64_t n_ranks,
                                 const EmbeddingPlanOptions& options, std::vector<TablePlan> table_plans);

}  // namespace shardwise
