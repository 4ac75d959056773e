// runtime/redistribute/buffers.h: memory for messages, kept from one exchange to the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

struct BufferCounters {
  int64_t hits = 0;        // taken from what was kept
  int64_t misses = 0;      // allocated
  int64_t kept_bytes = 0;  // now
};

/// Buffers of CPU memory that this thread gave back, at most kMaxKeptBytes of them: fresh pages cost as much as the copy into them.
/// Other devices' allocators keep their own.
class BufferPool {
 public:
  static constexpr int64_t kMaxKeptBytes = int64_t{64} << 20;

  static BufferPool& of_thread();

  /// A flat tensor of `n_bytes` bytes, uninitialised, perhaps the beginning of a larger one; give it back when no message uses it.
  at::Tensor take(int64_t n_bytes, c10::Device device);
  void give_back(const at::Tensor& buffer);

  const BufferCounters& counters() const { return counters_; }

 private:
  std::vector<at::Tensor> kept_;  // by size
  BufferCounters counters_;
};

}  // namespace shardwise
