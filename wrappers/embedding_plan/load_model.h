// wrappers/embedding_plan/load_model.h: what a step costs a rank, from a stated model. Pure.
//
// A step looks up a batch on each rank, comes back with gradients, and updates the rows. Of each table a rank's batch names n = batch *
// ids_per_sample ids, u different ones; all R ranks together name U different ones (distinct_ids.h).
//
//   client, every rank alike    n ids found among the different ones; n vectors read, written and given a gradient
//   a slice, on its rank        R u ids arrive, each once per asking rank, and as many rows leave: reach and copy them. As many gradients
//                               arrive and are summed; U rows are updated, with the optimizer's state
//   a replicated table          u rows are looked up on the rank, the dense gradient is written, all-reduced and applied to all rows
//   exchanges                   ids, vectors and gradients: three, of R - 1 messages, whatever the number of tables, and a count per
//                               slice and asking rank; one all-reduce of all replicated tables, mesh dim by mesh dim as a ring
//
// Where a slice has part of the rows, u and U are those of its rows: low rows are hot where ids are skewed. What is read or
// written counts by memory_gb_per_s, reaching a row by ns_per_row, a message by its link. Both directions of an exchange are
// under way at once. What ranks serve is what ranks ask for, so the rank that serves most sets the exchange's time, and
// only what a rank serves is counted.
#pragma once

#include "wrappers/embedding_plan/distinct_ids.h"
#include "wrappers/embedding_plan/plan_options.h"
#include "wrappers/embedding_plan/table_config.h"

#include <vector>

namespace shardwise::detail {

class LoadModel {
 public:
  /// Pre: check_tables() and check_options() passed. `tables` outlive this. Cost: O(tables).
  LoadModel(const std::vector<TableConfig>& tables, int64_t n_ranks, const EmbeddingPlanOptions& options);

  /// Rows that ranks ask of these rows of a table in a step: each once per asking rank.
  double lookups(size_t table, Interval rows) const;
  /// Bytes that cross links for a slice: ids and gradients to it, vectors from it, counts.
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
  /// Of a slice of which nothing is asked: its counts.
  double seconds_of_empty_slice() const;
  /// Every rank's share of a replicated table, without latencies.
  double replicated_seconds(size_t table) const;
  double replicated_lookups(size_t table) const;
  /// Bytes that a rank sends (and receives) of the all-reduce of a replicated table.
  double all_reduced_bytes(size_t table) const;

  double client_seconds() const { return client_seconds_; }
  /// Latencies of the three exchanges, paid where any table is sharded.
  double exchange_latency() const { return exchange_latency_; }
  /// Latencies of the all-reduce, paid where any table is replicated.
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
  };

  const std::vector<TableConfig>& tables_;
  int64_t n_ranks_;
  int64_t state_per_element_, state_per_row_;
  double memory_seconds_, row_seconds_, segment_seconds_;  // per byte, row, segment
  double wire_seconds_ = 0;                                // per byte of an exchange among all ranks
  double all_reduce_seconds_ = 0;                          // per byte of a replicated table
  double all_reduce_share_ = 0;                            // bytes sent per byte of a replicated table
  double exchange_latency_ = 0, all_reduce_latency_ = 0, client_seconds_ = 0;
  std::vector<Ids> ids_;
};

}  // namespace shardwise::detail
