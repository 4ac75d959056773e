// tests/support/freed_memory.h: bytes of CPU tensors that this thread frees.
//
//   FreedMemory freed;
//   { at::Tensor x = at::rand({4}); }
//   EXPECT_EQ(freed.n_bytes(), 16);
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace shardwise {

/// Counts what is both allocated and freed while it lives.
class FreedMemory {
 public:
  FreedMemory() : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  int64_t n_bytes() const { return counter_->n_bytes; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t n, size_t, size_t, c10::Device) override { n_bytes += n < 0 ? -n : 0; }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t n_bytes = 0;
  };

  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace shardwise
