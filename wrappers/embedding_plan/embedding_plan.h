// wrappers/embedding_plan/embedding_plan.h: which rank holds which part of which embedding table. A value, pure: no tensors, no process
// group.
//
//   tables + ranks + options -> plan_embeddings() -> EmbeddingPlan: per table its treatment and slices, per rank its groups of slices
#pragma once

#include "wrappers/embedding_plan/plan_options.h"
#include "wrappers/embedding_plan/table_config.h"
#include "wrappers/embedding_plan/table_slice.h"

#include <cstdint>
#include <string>
#include <vector>

namespace shardwise {

/// Slices of one rank that are looked up together (D5): tables of one width, dtype and combiner, one after another by rows. Replicated tables
/// have groups of their own, which come first and are the same on every rank: their gradients are averaged, the others' are not.
struct EmbeddingGroup {
  bool is_replicated = false;
  int64_t n_columns = 0;  // of the slices
  std::string dtype;
  Combiner combiner = Combiner::kSum;
  int64_t n_rows = 0;  // of all slices together
  bool operator==(const EmbeddingGroup&) const = default;
};

/// What a plan asks of one rank in a step, by the model of load_model.h.
struct RankLoad {
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;  // of the optimizer
  double lookups =
      0;  // rows read: those other ranks ask for, each once per asking rank, and those of replicated tables
  double exchange_bytes = 0;  // that cross links to or from this rank: ids, vectors, gradients, the all-reduce's
  double seconds = 0;

  int64_t n_bytes() const { return weight_bytes + state_bytes; }
  bool operator==(const RankLoad&) const = default;
};

struct RankEmbeddings {
  std::vector<EmbeddingGroup> groups;
  /// Slices that are not replicated, as indices of (table, slice of it): by table.
  std::vector<std::pair<size_t, size_t>> sharded;
  RankLoad load;
  bool operator==(const RankEmbeddings&) const = default;
};

/// Where everything is, what that costs, and why. The same on every rank that makes it of the same arguments.
struct EmbeddingPlan {
  std::vector<TableConfig> tables;
  int64_t n_ranks = 0;
  EmbeddingPlanOptions options;
  std::vector<TablePlan> table_plans;  // per table
  std::vector<RankEmbeddings> ranks;   // per rank
  /// No plan that keeps to the options has a most loaded rank of less: see load_bound.h.
  double bound_seconds = 0;

  /// Throws: c10::IndexError for a rank that is not one of the plan's.
  void check_rank(int64_t rank) const;
  /// Slices of replicated tables, then the others: by group, then by first row.
  std::vector<TableSlice> slices_on(int64_t rank) const;
  /// The rank of the longest step, the first of equals.
  int64_t most_loaded_rank() const;
  /// That rank's seconds.
  double seconds() const { return ranks[most_loaded_rank()].load.seconds; }
  /// The rank of the most bytes, the first of equals.
  int64_t heaviest_rank() const;

  bool operator==(const EmbeddingPlan&) const = default;
};

/// Places tables on ranks. Thresholds choose treatments as slice_rules.h says, and the strategy deals the slices; kCostBalanced is
/// cost_balanced.h's.
///
/// Throws: c10::ValueError for tables and options that cannot be, for fewer slices than ranks (naming the threshold to lower), and where
/// a rank needs more than memory_per_rank. Cost: O((slices + ranks) log), and less than 10 s for 10,000 tables on 4,096 ranks under
/// kCostBalanced.
EmbeddingPlan plan_embeddings(std::vector<TableConfig> tables, int64_t n_ranks,
                              const EmbeddingPlanOptions& options = {});

/// The plan of slices that somebody else chose: groups, first rows, loads and bound are worked out. Slices need a rank, rows and columns; for
/// replicated tables, and row-parallel ones in balanced parts, they may be left out.
///
/// Throws: c10::ValueError naming the table, where its slices are not on ranks of the plan, overlap, or leave a part of it out.
EmbeddingPlan arrange_embeddings(std::vector<TableConfig> tables, int64_t n_ranks, const EmbeddingPlanOptions& options,
                                 std::vector<TablePlan> table_plans);

}  // namespace shardwise
