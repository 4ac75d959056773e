// wrappers/distributed_embedding/table_storage.h: storage of the rows of a table that is larger than memory.
#pragma once

#include <cstdint>
#include <string>

namespace shardwise {

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

}  // namespace shardwise
