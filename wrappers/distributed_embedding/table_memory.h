// wrappers/distributed_embedding/table_memory.h: this rank's memory of all tables: a block per lane, of which the tables' pieces are
// views.
//
// The block of a table that lies in files is a file, and its rows are looked up and updated in a cache of hot ones. DTensors of it are views
// of the file: their operators see what lookups' backwards have changed after write_back(), and lookups see what operators write.
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
  /// Allocates it, on the mesh's device, uninitialised. Throws: as mapped_zeros(), on the rank that has no room.
  explicit TableMemory(const TableLanes& lanes);

  /// The tables, distributed. Each call gives new tensors of the same memory.
  std::vector<at::Tensor> tables() const;

  /// Of a table's values.
  at::TensorOptions options(size_t table) const;

  /// This rank's block of a lane: [rows, width].
  const at::Tensor& block(size_t lane) const { return blocks_[lane]; }
  /// The cache of a lane; null for one in memory, and without rows here.
  const HotRowsPtr& cache(size_t lane) const { return caches_[lane]; }
  /// The caches of a table's pieces, as its spec orders them; none for a table in memory.
  std::vector<HotRowsPtr> caches_of(size_t table) const;
  /// Brings what lies in files up to date.
  void write_back() const;
  /// The same before somebody writes to a table past its DTensor.
  void expect_write(size_t table) const;

  /// This rank's pieces of a table, as its spec orders them; those without rows too.
  std::vector<TablePart> pieces(size_t table) const;

  /// Throws: c10::ValueError where a table is not of the layout and memory that tables() gave it, which lookups read. A program that does
  /// the same on all ranks has the error on all.
  void check(c10::ArrayRef<at::Tensor> tables) const;

 private:
  Shards shards_of(size_t table) const;
  void watch_writes();

  const TableLanes* lanes_;
  std::vector<at::Tensor> blocks_;         // by lane
  std::vector<HotRowsPtr> caches_;         // by lane
  std::vector<TensorMemoryPtr> memories_;  // by table: of all its DTensors
  std::vector<std::shared_ptr<const TensorMemory::Action>> before_writes_;
  std::vector<std::vector<at::Tensor>> replicated_;  // by table; the one piece of a replicated one
};

}  // namespace shardwise
