// wrappers/distributed_embedding/table_lanes.h: places the slices of tables in blocks of memory on ranks.
//
// A lane is the set of all slices of one width and dtype. On each rank the slices of a lane are stacked in one block, so that one kernel call serves
// them all and one message per pair of ranks carries their rows:
//
//   tables a [10, 8], b [4, 8] on rank 0, c [7, 16] on ranks 0 and 1, 8 columns each:
//   lane 0 (width 8, float32)    rank 0: a, rows 0 to 9; b, rows 10 to 13; c[:, 0:8], rows 14 to 20    rank 1: c[:, 8:16], rows 0 to 6
//
// The slices of a table in files have lanes of their own, with one slice per rank, because each slice has its own file and cache.
#pragma once

#include "runtime/tensor/spec.h"
#include "wrappers/embedding_plan/embedding_plan.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// The layer's name in its errors and in traces.
inline constexpr const char* kLayer = "DistributedEmbedding";

/// Each rank that has rows of the table stores them in an unnamed file in `folder` (runtime/tensor/mapped_memory.h), with hot rows in the memory of
/// the mesh's device (ops/embedding/hot_rows.h).
struct TableStorage {
  std::string folder;
  /// The size of the cache, per rank and column slice, in rows or in bytes of values. One of the two is above 0. The optimizer's state for the same
  /// rows takes further memory.
  int64_t cache_rows = 0;
  int64_t cache_bytes = 0;

  /// The number of rows that fit if each has `row_bytes`: 1 or more.
  int64_t rows_of(int64_t row_bytes) const {
    const int64_t n = cache_rows > 0 ? cache_rows : cache_bytes / (row_bytes > 0 ? row_bytes : 1);
    return n > 0 ? n : 1;
  }
};

/// By table; other tables are in memory.
using TableStorages = std::map<size_t, TableStorage>;

struct Lane {
  int64_t width = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> heights;  // rows of the block, by rank
  /// For a lane of a table in files: (table, part), with part an index into LayerTable::parts.
  std::optional<std::pair<size_t, size_t>> stored = std::nullopt;
};

/// A slice, and its place in the block of its lane on its rank.
struct LaneSlice {
  int64_t rank = 0;
  Interval rows, columns;  // of the table
  size_t lane = 0;
  int64_t first_row = 0;  // in the block
  size_t part = 0;        // index into LayerTable::parts
};

/// A table of the layer.
struct LayerTable {
  std::string name;
  SpecPtr spec;
  bool is_replicated = false;     // then it has no slices: every rank stores it outside of the lanes
  std::vector<LaneSlice> slices;  // by first row, then first column
  std::vector<Interval> parts;    // the distinct column intervals of slices, ascending
  std::optional<TableStorage> storage = std::nullopt;
};

/// All tables of a layer, on a 1-D mesh. A value, equal on all ranks.
struct TableLanes {
  MeshPtr mesh;
  std::vector<LayerTable> tables;
  std::vector<Lane> lanes;  // larger elements first

  /// Throws: c10::ValueError for a mesh of several dims; for a plan with another number of ranks, or with column slices that differ from rows to rows
  /// so that they overlap; and for storage of a table that is replicated or does not exist, without a cache, or with two slices of the same columns
  /// on one rank.
  static TableLanes of(const std::vector<TableConfig>& configs, const std::vector<TablePlan>& plans,
                       const MeshPtr& mesh, const TableStorages& storages = {});

  /// This rank's slice that is `box` of the table; null if the box has no rows.
  const LaneSlice* own_slice(const LayerTable& table, const Box& box) const;
  /// The lane of the slices with the columns of part number `part`.
  static size_t lane_of(const LayerTable& table, size_t part);

  int64_t n_ranks() const { return mesh->size(); }
  int64_t own_rank() const { return mesh->group()->index; }
};

/// "float32" -> at::kFloat. Throws: c10::TypeError for a name that is no floating dtype.
at::ScalarType table_dtype(std::string_view name);

}  // namespace shardwise
