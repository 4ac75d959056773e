// ops/embedding/unfetched_rows.h: rows that all ranks named by the same ids, before anybody used them.
//
//   at::Tensor rows = at::embedding(table, ids);                 // ids are checked; no row is sent
//   redistribute(rows, {Placement::shard(0)});                   // each rank is sent the rows of its part of the ids
//   rows.sum();                                                  // any other use: all ranks are sent all rows
#pragma once

#include "ops/embedding/table_lookup.h"
#include "runtime/tensor/tensor_memory.h"

#include <functional>
#include <memory>
#include <optional>

namespace shardwise {

/// This rank's piece of the rows of a lookup that was started. Collective among the ranks of its exchange.
using FindRows = std::function<at::Tensor(const TableLookup& lookup, const at::Tensor& table)>;

/// A lookup with ids sharded, where its rows were fetched so: the backward uses it again.
using ShardedLookup = std::shared_ptr<std::optional<TableLookup>>;

class UnfetchedRows final : public PendingMove {
 public:
  /// `lookup`: of equal ids, without its exchange. The table may not be written to past DTensors before the rows are fetched.
  UnfetchedRows(TableLookup lookup, const at::Tensor& table, FindRows find_rows, ShardedLookup sharded);

  /// Rows are fetched before an operator writes to the table. `rows`: what these are pending for.
  void watch_table(const at::Tensor& rows);

  bool is_unfetched() const override { return true; }
  Shards finish() override;
  std::optional<Shards> fetch_as(const SpecPtr& to) override;

 private:
  void check_table() const;
  /// The layout of ids whose rows lie as `to`, if that is another one.
  std::optional<Placements> ids_for(const Spec& to) const;

  const TableLookup lookup_;
  const at::Tensor table_;  // detached
  const FindRows find_rows_;
  const ShardedLookup sharded_;
  const uint32_t write_count_;  // of the table
  std::shared_ptr<const TensorMemory::Action> watch_;
};

}  // namespace shardwise
