// runtime/threads/thread_world.h: ranks as threads of one process, for tests and notebooks.
//
//   run_ranks(3, [](World& world) { ... });    // three threads; each has its own World::current()
#pragma once

#include "runtime/comm/world.h"
#include "runtime/threads/rendezvous.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

constexpr std::chrono::milliseconds kThreadTimeout = std::chrono::minutes(5);

/// The ranks of one such program, for a caller that makes the threads itself. Thread-safe.
///
/// Each thread: World::set_thread(hub.world(rank)), which also has the thread compute its backwards itself, the work, then hub.finish(rank) or, where it threw, hub.abort(rank, why).
class ThreadHub {
 public:
  /// `timeout`: how long a rank waits for the others in one collective. Throws: c10::ValueError for less than one rank.
  explicit ThreadHub(int64_t n_ranks, std::chrono::milliseconds timeout = kThreadTimeout);

  int64_t size() const { return membership_->size(); }
  /// The World of `rank`, made at the first call. Throws: c10::ValueError for an unknown rank.
  std::shared_ptr<World> world(int64_t rank);
  /// `rank` has failed; those who wait for it, now or later, throw and name it. True for the first to fail.
  bool abort(int64_t rank, const std::string& reason);
  /// `rank` no longer takes part; those that wait for it throw and name it.
  void finish(int64_t rank);

 private:
  struct RendezvousTable;  // by ranks; outlives the hub where a World does

  std::shared_ptr<Membership> membership_;
  std::shared_ptr<RendezvousTable> rendezvous_table_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<World>> worlds_;
};

/// Runs `body` in `n_ranks` threads, each with its own World, and joins them. Meshes and modules that are sharded are made inside of `body`: each
/// thread needs its own.
///
/// Throws: what the first rank to fail threw, as "rank 2: <text>", in its own type where that is one of c10's errors and
/// as c10::Error otherwise. The other ranks are released from the collectives they wait in.
void run_ranks(int64_t n_ranks, const std::function<void(World&)>& body,
               std::chrono::milliseconds timeout = kThreadTimeout);

}  // namespace shardwise
