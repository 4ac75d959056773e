// wrappers/distributed_embedding/row_requests.h: the distinct rows that this rank's ids name, the ranks they come from, and their places on arrival.
//
// The rows of a lane that a rank requests arrive in one tensor, the arrivals: rows from rank 0 first, rows from one rank in the order of its block.
//
//   ids 7 2 7 of table a, rows [0, 5) on rank 0 and [5, 10) on rank 1:   row 2 of rank 0 is arrival 0, row 7 of rank 1 arrival 1
#pragma once

#include "ops/embedding/row_kernels.h"
#include "wrappers/distributed_embedding/feature_ids.h"
#include "wrappers/distributed_embedding/table_lanes.h"

#include <vector>

namespace shardwise {

/// The groups [begin, end) of a table's ids, whose rows are in one slice, and the first of their arrivals.
struct RowRequest {
  size_t slice = 0;  // index into LayerTable::slices
  int64_t begin = 0;
  int64_t end = 0;
  int64_t arrival = 0;

  int64_t n() const { return end - begin; }
};

/// The requests to one sharded table, for all features that use it.
struct TableRequests {
  size_t table = 0;
  std::vector<size_t> features;
  std::vector<int64_t> first_ids;  // where each feature's ids begin among the table's ids; last entry: number of ids
  IdGroups groups;                 // of the table's ids by row, with group_of; on the CPU
  std::vector<RowRequest> requests;

  /// The position of a feature in `features`.
  size_t place_of(size_t feature) const;
};

class RowRequests {
 public:
  RowRequests() = default;
  /// Throws: c10::IndexError that names the feature and the worst id, if an id is out of range. No messages. `features_of`: by table.
  RowRequests(const TableLanes& lanes, const std::vector<Feature>& features,
              const std::vector<std::vector<size_t>>& features_of, const std::vector<FeatureIds>& ids);
  /// The requests of a rank without ids.
  explicit RowRequests(const TableLanes& lanes);

  const std::vector<TableRequests>& tables() const { return tables_; }
  /// The requests to a table; null for a replicated table and for one that no feature uses.
  const TableRequests* of_table(size_t table) const;
  /// The number of arrivals of a lane from one rank, and from all ranks.
  int64_t n_from(size_t lane, int64_t rank) const { return counts_[lane][static_cast<size_t>(rank)]; }
  int64_t n_arrivals(size_t lane) const;
  /// The first arrival of a lane from a rank.
  int64_t first_from(size_t lane, int64_t rank) const;

  /// Writes the numbers of the requested rows of `rank`'s block, lane by lane, in the order of their arrivals. `words`: has room for all.
  template <class Word>
  void write_rows(const TableLanes& lanes, int64_t rank, Word* words) const;

  /// The arrival of each of a feature's ids in the columns of part number `part`: [ids] int64, on the CPU.
  at::Tensor arrivals(const TableLanes& lanes, const TableRequests& table, size_t feature, size_t part) const;

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (TableRequests& table : tables_) table.groups.for_each_tensor(visit);
  }

 private:
  std::vector<TableRequests> tables_;         // of the tables that a feature uses, in the order of tables
  std::vector<int64_t> places_;               // position in tables_, by table; -1: none
  std::vector<std::vector<int64_t>> counts_;  // by lane and rank
};

/// Throws: c10::IndexError that names the feature and the worst id, if an id is no row of the table.
void check_range(const Feature& feature, const at::Tensor& ids, const LayerTable& table);

}  // namespace shardwise
