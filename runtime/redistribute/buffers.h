// runtime/redistribute/buffers.h: memory for messages, reused between exchanges.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

struct BufferCounters {
  int64_t hits = 0;        // buffers that were reused
  int64_t misses = 0;      // buffers that were allocated
  int64_t kept_bytes = 0;  // now
};

/// CPU buffers that this thread has given back, for reuse; at most kMaxKeptBytes, because fresh pages cost as much as the copy into them.
/// Allocators of other devices have caches of their own.
class BufferPool {
 public:
  static constexpr int64_t kMaxKeptBytes = int64_t{64} << 20;

  static BufferPool& of_thread();

  /// A flat, uninitialised tensor of `n_bytes` bytes, possibly the beginning of a larger one. Give it back when no message uses it any
  /// more.
  at::Tensor take(int64_t n_bytes, c10::Device device);
  void give_back(const at::Tensor& buffer);
  /// Whether buffers on meta are kept as CPU buffers are. Lets go of those that are kept.
  void keep_on_meta(bool are_kept);

  const BufferCounters& counters() const { return counters_; }

 private:
  bool keeps(c10::Device device) const { return device.is_cpu() || (keeps_on_meta_ && device.is_meta()); }

  std::vector<at::Tensor> kept_;  // by size
  bool keeps_on_meta_ = false;
  BufferCounters counters_;
};

}  // namespace shardwise
