// wrappers/distributed_embedding/table_memory.h: this rank's memory of all tables: a block per lane. The tables' pieces are views of the blocks.
//
// The block of a table in files is a file; lookups and updates use a cache of its hot rows. DTensors of the table are views of the file: operators on
// them see the updates of backwards after write_back(), and lookups see writes by operators.
#pragma once

#include "ops/embedding/hot_rows.h"
#include "wrappers/distributed_embedding/table_lanes.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace shardwise {

/// A part of a table in this rank's memory.
struct TablePart {
  at::Tensor values;       // [rows, columns]
  Interval rows, columns;  // of the table
};

class TableMemory {
 public:
  /// Allocates uninitialised memory on the mesh's device. Throws: as mapped_zeros(), on the rank whose disk is full.
  explicit TableMemory(const TableLanes& lanes);

  /// The tables, distributed. Each call returns new tensors over the same memory.
  std::vector<at::Tensor> tables() const;

  /// The dtype and device of a table's values.
  at::TensorOptions options(size_t table) const;

  /// This rank's block of a lane: [rows, width].
  const at::Tensor& block(size_t lane) const { return blocks_[lane]; }
  /// The cache of a lane; null for a lane in memory, and if this rank has no rows of it.
  const HotRowsPtr& cache(size_t lane) const { return caches_[lane]; }
  /// The caches of a table's pieces, in the order of its spec; empty for a table in memory.
  std::vector<HotRowsPtr> caches_of(size_t table) const;
  /// Brings the files up to date.
  void write_back() const;
  /// The same for one table, called before a write that bypasses its DTensor.
  void expect_write(size_t table) const;

  /// This rank's pieces of a table, in the order of its spec, including pieces without rows.
  std::vector<TablePart> pieces(size_t table) const;

  /// Throws: c10::ValueError if a table does not have the layout and memory of tables(), because lookups read that memory. If a program does the same
  /// on all ranks, all ranks throw.
  void check(c10::ArrayRef<at::Tensor> tables) const;

 private:
  Shards shards_of(size_t table) const;
  void watch_writes();

  const TableLanes* lanes_;
  std::vector<at::Tensor> blocks_;         // by lane
  std::vector<HotRowsPtr> caches_;         // by lane
  std::vector<TensorMemoryPtr> memories_;  // by table: shared by all its DTensors
  std::vector<std::shared_ptr<const TensorMemory::Action>> before_writes_;
  std::vector<std::vector<at::Tensor>> replicated_;  // by table; the one piece of a replicated one
};

}  // namespace shardwise
