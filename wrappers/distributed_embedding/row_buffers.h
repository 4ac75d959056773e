// wrappers/distributed_embedding/row_buffers.h: reused memory for rows in messages. Fresh memory costs a page fault per 4 KiB, about as much time as
// filling it.
#pragma once

#include "runtime/comm/peer_memory.h"

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace shardwise {

/// A pool of buffers; free buffers are reused. Safe to use from several threads.
class RowBuffers {
 public:
  /// From now on, new buffers are blocks of `memory` as long as it has room. It outlives calls of take().
  void share(const PeerMemory& memory) { shared_ = &memory; }
  /// [n_rows, width], uninitialised. The buffer is free again when the last tensor over its memory is gone.
  at::Tensor take(int64_t n_rows, int64_t width, const at::TensorOptions& options);
  /// Bytes of all buffers, including those in use.
  int64_t n_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<at::Tensor> buffers_;  // flat; buffers that were free and not taken kMostIdle times in a row are dropped
  std::vector<int64_t> idle_;
  const PeerMemory* shared_ = nullptr;
};

/// Asks the system for large pages for the untouched memory of a CPU tensor, so that access to scattered rows has fewer TLB misses. Does nothing if
/// the system has no large pages.
void prefer_large_pages(const at::Tensor& tensor);

}  // namespace shardwise
