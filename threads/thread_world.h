// threads/thread_world.h: ranks as threads of one process, for tests and notebooks.
//
//   run_ranks(3, [](World& world) { ... });    // three threads; each has its own World::current()
#pragma once

#include "runtime/comm/world.h"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

constexpr std::chrono::milliseconds kThreadTimeout = std::chrono::minutes(5);

/// The ranks of one program with threads as ranks, for a caller that creates the threads itself. Thread-safe.
///
/// Each thread calls World::set_thread(hub.world(rank)); world() also makes the thread run its backwards itself. After its work it calls
/// hub.finish(rank) or, if it threw, hub.abort(rank, why).
class ThreadHub {
 public:
  /// `timeout`: how long a rank waits for the others in one collective. Throws: c10::ValueError for less than one rank.
  explicit ThreadHub(int64_t n_ranks, std::chrono::milliseconds timeout = kThreadTimeout);

  int64_t size() const { return static_cast<int64_t>(worlds_.size()); }
  /// The World of `rank`, created at the first call. Throws: c10::ValueError for an unknown rank.
  std::shared_ptr<World> world(int64_t rank);
  /// Marks `rank` as failed: ranks that wait for it, now or later, throw and name it. Returns true for the first failure.
  bool abort(int64_t rank, const std::string& reason);
  /// Marks `rank` as finished: ranks that wait for it throw and name it.
  void finish(int64_t rank);

 private:
  struct Shared;  // outlives the hub if a World does

  std::shared_ptr<Shared> shared_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<World>> worlds_;
};

/// Runs `body` in `n_ranks` threads, each with its own World, and joins them. Meshes and sharded modules must be created inside `body`,
/// because each thread needs its own.
///
/// Throws: the error of the first rank that failed, as "rank 2: <text>", in its own type if it is one of c10's errors, otherwise as
/// c10::Error. The other ranks are released from collectives in which they wait.
void run_ranks(int64_t n_ranks, const std::function<void(World&)>& body,
               std::chrono::milliseconds timeout = kThreadTimeout);

}  // namespace shardwise
