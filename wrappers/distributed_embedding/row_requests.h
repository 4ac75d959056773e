// wrappers/distributed_embedding/row_requests.h: which rows of which tables this rank's ids name, each once, from which rank they come,
// and where they come to lie.
//
// The rows of a lane that a rank asks for lie in one tensor, its arrivals: those of rank 0 first, each rank's in the order of its block.
//
//   ids 7 2 7 of table a, rows [0, 5) on rank 0 and [5, 10) on rank 1:   row 2 of rank 0 is arrival 0, row 7 of rank 1 arrival 1
#pragma once

#include "ops/embedding/row_kernels.h"
#include "wrappers/distributed_embedding/feature_ids.h"
#include "wrappers/distributed_embedding/table_lanes.h"

#include <vector>

namespace shardwise {

/// The groups [begin, end) of a table's ids, whose rows lie in one slice, and the first of their arrivals.
struct RowRequest {
  size_t slice = 0;  // index into LayerTable::slices
  int64_t begin = 0;
  int64_t end = 0;
  int64_t arrival = 0;

  int64_t n() const { return end - begin; }
};

/// What is asked of one sharded table for all features that use it.
struct TableRequests {
  size_t table = 0;
  std::vector<size_t> features;
  std::vector<int64_t> first_ids;  // where each feature's ids begin among the table's; the last entry is their number
  IdGroups groups;                 // of the table's ids by row, with group_of; on the CPU
  std::vector<RowRequest> requests;

  /// The place of a feature among the table's.
  size_t place_of(size_t feature) const;
};

class RowRequests {
 public:
  RowRequests() = default;
  /// Throws: c10::IndexError that names the feature and the worst id, for one out of range. No messages.
  /// `features_of`: by table.
  RowRequests(const TableLanes& lanes, const std::vector<Feature>& features,
              const std::vector<std::vector<size_t>>& features_of, const std::vector<FeatureIds>& ids);
  /// Of a rank without ids.
  explicit RowRequests(const TableLanes& lanes);

  const std::vector<TableRequests>& tables() const { return tables_; }
  /// Those of the table with this index; null where no feature uses it, and of a replicated table.
  const TableRequests* of_table(size_t table) const;
  /// Arrivals of a lane from a rank, and all of the lane.
  int64_t n_from(size_t lane, int64_t rank) const { return counts_[lane][static_cast<size_t>(rank)]; }
  int64_t n_arrivals(size_t lane) const;
  /// The first arrival of a lane from a rank.
  int64_t first_from(size_t lane, int64_t rank) const;

  /// Writes the rows of `rank`'s block that are asked for, lane after lane in the order of their arrivals. `words`: room for all.
  template <class Word>
  void write_rows(const TableLanes& lanes, int64_t rank, Word* words) const;

  /// The arrival of each of a feature's ids in the columns of part number `part`: [ids] int64, on the CPU.
  at::Tensor arrivals(const TableLanes& lanes, const TableRequests& table, size_t feature, size_t part) const;

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (TableRequests& table : tables_) table.groups.for_each_tensor(visit);
  }

 private:
  std::vector<TableRequests> tables_;         // of those that a feature uses, in their order
  std::vector<int64_t> places_;               // in tables_, by table; -1: none
  std::vector<std::vector<int64_t>> counts_;  // by lane and rank
};

/// Throws: c10::IndexError that names the feature and the worst id, where one is no row of the table.
void check_range(const Feature& feature, const at::Tensor& ids, const LayerTable& table);

}  // namespace shardwise
