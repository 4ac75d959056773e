// runtime/tensor/write_watch.h: who made something of a tensor's values, and must hear of it before they change.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

namespace shardwise {

/// Watches the memory of a tensor while it lives. Aliases that have versions of their own, as x.data has, are seen, too, and on all ranks
/// alike; writes past DTensors, to what to_local() gave, are not.
class WriteWatch {
 public:
  using Action = std::function<void()>;

  /// `before_write` is called on the thread that writes, perhaps several times. It may communicate: ranks write alike.
  WriteWatch(const DTensorImpl& watched, Action before_write);
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  /// True where anything in the process is watched: then writes want note_write(). Cost: a read.
  static bool any() { return count_.load(std::memory_order_relaxed) > 0; }
  /// Before an operator writes to `written`.
  static void note_write(const DTensorImpl& written);

 private:
  struct Registry;
  static Registry& registry();
  static inline std::atomic<size_t> count_{0};

  const uint64_t memory_id_;
  const std::shared_ptr<const Action> before_write_;
};

}  // namespace shardwise
