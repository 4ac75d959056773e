// wrappers/embedding_plan/load_model.h: the cost of a step for a rank, by the following model. Pure.
//
// A step looks up a batch on each rank, sends gradients back, and updates the rows. For each table, a rank's batch has n = batch * ids_per_sample
// ids, u of them distinct; the batches of all R ranks together have U distinct ids (distinct_ids.h).
//
//   client, every rank alike    n ids found among the distinct ones; n vectors read, written and given a gradient
//   a slice, on its rank        R u ids arrive, once per requesting rank, and as many rows are reached, copied and sent. As many gradients
//                               arrive and are summed; U rows are updated, with the optimizer's state
//   a replicated table          u rows are looked up on the rank. Ranks tell each other their row numbers. If is_reduced(), the gradients of U
//                               rows are all-reduced; otherwise a rank's u go to all others, and R u are summed. U rows are updated
//   exchanges                   three: ids, vectors and gradients, of R - 1 messages for any number of tables, and a count per
//                               slice and requesting rank; an exchange of row numbers and an all-reduce of all replicated tables, mesh dim by
//                               mesh dim as a ring
//
// The optimizer is fused, so it updates rows with ids alone. A plain one has dense gradients, and updates all rows, in every treatment.
//
// If a slice has only some of the rows, u and U count its rows only; low rows are hot if ids are skewed. Bytes read or written cost by
// memory_gb_per_s, reaching a row by ns_per_row, a message by its link. The two directions of an exchange overlap. Ranks together serve as much as
// they request, so the rank that serves most determines the time of an exchange, and only the bytes that a rank serves are counted.
#pragma once

#include "wrappers/embedding_plan/distinct_ids.h"
#include "wrappers/embedding_plan/plan_options.h"
#include "wrappers/embedding_plan/table_config.h"

#include <utility>
#include <vector>

namespace shardwise::detail {

class LoadModel {
 public:
  /// Pre: check_tables() and check_options() passed. `tables` outlive this object. Cost: O(tables).
  LoadModel(const std::vector<TableConfig>& tables, int64_t n_ranks, const EmbeddingPlanOptions& options);

  /// The number of lookups of these rows of a table in a step: distinct rows, summed over the requesting ranks.
  double lookups(size_t table, Interval rows) const;
  /// Bytes over links for a slice: ids and gradients to it, vectors from it, counts.
  double served_bytes(size_t table, Interval rows, int64_t n_columns) const;

  /// A slice costs its rank per_slice + n_columns * per_column.
  struct SliceSeconds {
    double per_slice = 0;
    double per_column = 0;
    double of(int64_t n_columns) const { return per_slice + per_column * static_cast<double>(n_columns); }
  };
  SliceSeconds slice_seconds(size_t table, Interval rows) const;
  double slice_seconds(size_t table, Interval rows, int64_t n_columns) const {
    return slice_seconds(table, rows).of(n_columns);
  }
  /// The seconds of a slice without requests: its counts only.
  double seconds_of_empty_slice() const;
  /// The seconds that every rank spends on a replicated table, without latencies.
  double replicated_seconds(size_t table) const;
  double replicated_lookups(size_t table) const;
  /// Bytes that a rank sends (and receives) for a replicated table.
  double replicated_bytes(size_t table) const;

  /// The seconds that every rank pays in a plan that replicates tables, or shards some, independent of the placement.
  double fixed_seconds(bool any_replicated, bool any_sharded) const {
    return client_seconds_ + (any_sharded ? exchange_latency_ : 0) + (any_replicated ? all_reduce_latency_ : 0);
  }
  double client_seconds() const { return client_seconds_; }
  /// Latencies of the three exchanges, paid if any table is sharded.
  double exchange_latency() const { return exchange_latency_; }
  /// Latencies of the row numbers and the all-reduce, paid if any table is replicated.
  double all_reduce_latency() const { return all_reduce_latency_; }

  int64_t weight_bytes(size_t table, int64_t n_rows, int64_t n_columns) const;
  int64_t state_bytes(int64_t n_rows, int64_t n_columns) const;
  int64_t slice_bytes(size_t table, int64_t n_rows, int64_t n_columns) const {
    return weight_bytes(table, n_rows, n_columns) + state_bytes(n_rows, n_columns);
  }

  int64_t n_ranks() const { return n_ranks_; }
  const std::vector<TableConfig>& tables() const { return tables_; }

 private:
  struct Ids {
    int64_t element_bytes;
    DistinctIds of_rank, of_all;
    bool are_reduced;  // if the table is replicated
  };

  /// Bytes of a replicated table that a rank sends to all others, and those that are all-reduced.
  std::pair<double, double> told_and_reduced(size_t table) const;

  const std::vector<TableConfig>& tables_;
  int64_t n_ranks_;
  int64_t state_per_element_, state_per_row_;
  double memory_seconds_, row_seconds_, segment_seconds_;  // per byte, row, segment
  double wire_seconds_ = 0;                                // per byte of an exchange among all ranks
  double all_reduce_seconds_ = 0;                          // per byte
  double all_reduce_share_ = 0;                            // bytes sent per byte
  double exchange_latency_ = 0, all_reduce_latency_ = 0, client_seconds_ = 0;
  std::vector<Ids> ids_;
};

}  // namespace shardwise::detail
