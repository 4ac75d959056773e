// wrappers/distributed_embedding/table_storage.h: where the rows of a table lie that is larger than memory.
#pragma once

#include <cstdint>
#include <string>

namespace shardwise {

/// On each rank that has rows of the table: a file without a name in `folder` (runtime/tensor/mapped_memory.h), and hot rows in the memory
/// of the mesh's device (ops/embedding/hot_rows.h).
struct TableStorage {
  std::string folder;
  /// Of the cache, per rank and column slice. One of the two is above 0: rows, or bytes of their values; the optimizer's state of the
  /// same rows takes its bytes beside.
  int64_t cache_rows = 0;
  int64_t cache_bytes = 0;

  /// Rows that fit, of so many bytes each: 1 or more.
  int64_t rows_of(int64_t row_bytes) const {
    const int64_t n = cache_rows > 0 ? cache_rows : cache_bytes / (row_bytes > 0 ? row_bytes : 1);
    return n > 0 ? n : 1;
  }
};

}  // namespace shardwise
