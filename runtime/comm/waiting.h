// runtime/comm/waiting.h: a wait for other ranks. Where it takes long, a warning says who waits for whom and in what: a rank that never
// comes (`if rank == 0: loss.item()`) would otherwise be a hang without a word.
#pragma once

#include "runtime/comm/gil_release.h"
#include "runtime/comm/group.h"

#include <chrono>

namespace shardwise {

/// Lives while this thread waits for the other ranks of a group in `collective`. Releases the interpreter's lock.
///
/// After SHARDWISE_WAIT_WARNING seconds (30 where the environment does not say; 0: never) a thread of its own warns, once per wait.
/// Cost: a clock and a lock that nobody else holds for long.
class Waiting {
 public:
  Waiting(const Group& group, const char* collective) : Waiting(group.ranks, group.ranks[group.index], collective) {}
  /// `ranks`, the group's, live as long; `rank` is this one.
  Waiting(const std::vector<int64_t>& ranks, int64_t rank, const char* collective);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  friend class WaitWatch;

  GilRelease no_gil_;
  const std::vector<int64_t>& ranks_;
  int64_t rank_;
  const char* collective_;
  const char* op_;
  std::chrono::steady_clock::time_point begin_;
  bool is_told_ = false;
};

}  // namespace shardwise
