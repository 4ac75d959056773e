// runtime/tensor/tensor_memory.h: the memory that views and aliases of one distributed tensor share, also on ranks that have no piece of
// it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace shardwise {

/// Counts the operators that write to the memory. All ranks call the same operators, so they agree on whether a tensor was written to.
/// Writes of a program to the result of to_local() are not counted, because a rank may make them alone.
class TensorMemory final : public c10::intrusive_ptr_target {
 public:
  using Action = std::function<void()>;

  uint64_t n_writes() const { return n_writes_.load(std::memory_order_relaxed); }

  /// Calls `action` before each write, on the writing thread, while the result lives. The action must not send.
  std::shared_ptr<const Action> before_writes(Action action);

 private:
  friend class MemoryWrite;
  void act();

  std::atomic<uint64_t> n_writes_ = 0;
  std::atomic<bool> has_actions_ = false;
  std::mutex mutex_;
  std::vector<std::weak_ptr<const Action>> actions_;  // under the mutex
};
using TensorMemoryPtr = c10::intrusive_ptr<TensorMemory>;

/// A write of an operator. Create it before the write; it counts when it ends, even by an error. So data that the operator itself reads is
/// not stale yet.
class MemoryWrite {
 public:
  /// Does nothing if `memory` is null. Cost: two reads.
  explicit MemoryWrite(TensorMemory* memory) : memory_(memory) {
    if (memory_ == nullptr) return;
    c10::raw::intrusive_ptr::incref(memory_);
    if (memory_->has_actions_.load(std::memory_order_acquire)) [[unlikely]]
      memory_->act();
  }
  ~MemoryWrite() {
    if (memory_ == nullptr) return;
    memory_->n_writes_.fetch_add(1, std::memory_order_relaxed);
    c10::raw::intrusive_ptr::decref(memory_);
  }
  MemoryWrite(MemoryWrite&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  MemoryWrite& operator=(MemoryWrite&&) = delete;
  MemoryWrite(const MemoryWrite&) = delete;

 private:
  TensorMemory* memory_;  // one reference
};

}  // namespace shardwise
