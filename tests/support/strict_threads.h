// tests/support/strict_threads.h: thread ranks that behave as over NCCL, or surely do not.
#pragma once

#include "threads/thread_ranks.h"

namespace shardwise {

/// Of the ranks that are started while it lives.
class StrictThreads {
 public:
  explicit StrictThreads(bool is_on) : was_on_(set_strict_threads(is_on)) {}
  ~StrictThreads() { set_strict_threads(was_on_); }
  StrictThreads(const StrictThreads&) = delete;
  StrictThreads& operator=(const StrictThreads&) = delete;

 private:
  bool was_on_;
};

}  // namespace shardwise
