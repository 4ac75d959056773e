// threads/thread_ranks.h: the ranks of a program that are threads of one process, what they wait for, and whether the waits can end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

/// Process-wide: whether ranks that are started from now on as threads behave as over NCCL (thread_backend.h). Off unless
/// SHARDWISE_THREADS=strict is in the environment. Returns the previous state.
bool set_strict_threads(bool is_on);
bool strict_threads();

class Communicator;

/// The ranks of one program that still take part. Thread-safe.
class ThreadRanks {
 public:
  ThreadRanks(int64_t n_ranks, std::chrono::milliseconds timeout, bool is_strict)
      : is_strict_(is_strict), changed_(n_ranks), is_finished_(n_ranks, false), timeout_(timeout) {}

  bool is_strict() const { return is_strict_; }
  int64_t size() const { return static_cast<int64_t>(is_finished_.size()); }
  /// Marks `rank` as failed: ranks that wait now or later throw `reason`. The first failure is kept; returns true for it.
  bool abort(int64_t rank, const std::string& reason);
  /// Marks `rank` as finished: ranks that need it throw.
  /// Throws: c10::ValueError if `rank` dropped a call without waiting for it.
  void finish(int64_t rank);
  /// Notes that `call` of `rank` was dropped without a wait. Ignored after a rank has failed, because the failure matters more.
  void note_dropped(int64_t rank, const std::string& call);

 private:
  friend class Communicator;
  friend class Mailbox;

  /// A thread of `member` that waits in `communicator` for the call `op`.
  struct Wait {
    Communicator* communicator;
    int64_t member;
    std::string op;
    const std::function<bool()>& is_over;
  };
  /// A member of a communicator that others wait for.
  struct Place {
    const Communicator* communicator;
    int64_t member;
    bool operator==(const Place&) const = default;
  };

  /// Returns when `wait` is over. A `timeout` of zero or less stands for the program's.
  /// Throws: c10::DistBackendError if the wait cannot end, or does not within the timeout, or an earlier wait in the communicator did not.
  void block(std::unique_lock<std::mutex>& lock, const Wait& wait, std::chrono::milliseconds timeout);
  /// The reason why the first launch of the last place on `path` will never run, or "". Each place on `path` needs the next one. Pre: the
  /// mutex is held.
  std::string obstacle(std::vector<Place>& path) const;
  std::string cycle(const std::vector<Place>& path) const;
  /// Wakes the threads of all ranks. Pre: the mutex is held.
  void wake_all();

  const bool is_strict_;
  std::mutex mutex_;
  std::vector<std::condition_variable> changed_;  // by rank, since waking 256 threads for one costs more than its call
  std::string failure_;                           // empty if no rank has failed
  std::vector<bool> is_finished_;
  std::chrono::milliseconds timeout_;
  std::list<std::pair<int64_t, const Wait*>> waits_;  // by rank
  std::vector<std::pair<int64_t, std::string>> dropped_;
};

}  // namespace shardwise
