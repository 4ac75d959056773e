// wrappers/distributed_embedding/table_memory.h: this rank's memory of all tables: a block per lane, of which the tables' pieces are
// views.
#pragma once

#include "wrappers/distributed_embedding/table_lanes.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// A part of a table in this rank's memory.
struct TablePart {
  at::Tensor values;       // [rows, columns]
  Interval rows, columns;  // of the table
};

class TableMemory {
 public:
  /// Allocates it, on the mesh's device, uninitialised.
  explicit TableMemory(const TableLanes& lanes);

  /// The tables, distributed. Each call gives new tensors of the same memory.
  std::vector<at::Tensor> tables() const;

  /// Of a table's values.
  at::TensorOptions options(size_t table) const;

  /// This rank's block of a lane: [rows, width].
  const at::Tensor& block(size_t lane) const { return blocks_[lane]; }

  /// This rank's pieces of a table, as its spec orders them; those without rows too.
  std::vector<TablePart> pieces(size_t table) const;

  /// Throws: c10::ValueError where a table is not of the layout and memory that tables() gave it, which lookups read.
  void check(c10::ArrayRef<at::Tensor> tables) const;

 private:
  const TableLanes* lanes_;
  std::vector<at::Tensor> blocks_;                   // by lane
  std::vector<std::vector<at::Tensor>> replicated_;  // by table; the one piece of a replicated one
};

}  // namespace shardwise
