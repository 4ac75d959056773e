// wrappers/distributed_embedding/row_buffers.h: memory for rows under way that steps use again: fresh memory costs a page fault per 4 KiB,
// about as much time as filling it.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace shardwise {

/// Buffers that nobody holds are given out again. Safe to use from several threads.
class RowBuffers {
 public:
  /// [n_rows, width], uninitialised. Free again when the last tensor of its memory is gone.
  at::Tensor take(int64_t n_rows, int64_t width, const at::TensorOptions& options);
  /// Of all buffers, those in use too.
  int64_t n_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<at::Tensor> buffers_;  // flat; those that were free in vain kMostIdle times are dropped
  std::vector<int64_t> idle_;
};

/// Asks the system for large pages for a CPU tensor's memory that nobody has touched: rows here and there then cost fewer misses of the
/// translation cache. Does nothing where the system has none.
void prefer_large_pages(const at::Tensor& tensor);

}  // namespace shardwise
