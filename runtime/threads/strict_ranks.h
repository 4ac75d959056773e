// runtime/threads/strict_ranks.h: which thread ranks of a strict program still take part, what they wait for, and whether that can end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

/// Ranks as threads that behave as over NCCL (strict_backend.h): process-wide, for the ranks that are started from now on. Off unless the
/// environment says SHARDWISE_THREADS=strict. Returns what it was.
bool set_strict_threads(bool is_on);
bool strict_threads();

class Communicator;

/// The ranks of one strict program. Thread-safe.
class StrictRanks {
 public:
  StrictRanks(int64_t n_ranks, std::chrono::milliseconds timeout) : is_finished_(n_ranks, false), timeout_(timeout) {}

  /// `rank` has failed: those who wait or come later throw `reason`.
  void abort(int64_t rank, const std::string& reason);
  /// `rank` has returned: those who need it throw.
  /// Throws: c10::ValueError where `rank` dropped a call that it never waited for.
  void finish(int64_t rank);
  /// `call` of `rank` was dropped without a wait. Counts unless a rank has failed, which then is the news.
  void note_dropped(int64_t rank, const std::string& call);

 private:
  friend class Communicator;

  /// A thread of `member` that waits in `communicator`, in the call `op`.
  struct Wait {
    const Communicator* communicator;
    int64_t member;
    std::string op;
    const std::function<bool()>& is_over;
  };
  /// A member of a communicator, as what others wait for.
  struct Place {
    const Communicator* communicator;
    int64_t member;
    bool operator==(const Place&) const = default;
  };

  /// Returns when `wait` is over. `timeout` of zero is the program's.
  /// Throws: c10::DistBackendError where it cannot end, or does not within the time-out.
  void block(std::unique_lock<std::mutex>& lock, const Wait& wait, std::chrono::milliseconds timeout);
  /// Why the first launch of the last place on `path` will never run, or "". Each place of `path` needs the next one. Pre: the mutex is
  /// held.
  std::string obstacle(std::vector<Place>& path) const;
  std::string cycle(const std::vector<Place>& path) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;  // empty while all is well
  std::vector<bool> is_finished_;
  std::chrono::milliseconds timeout_;
  std::list<std::pair<int64_t, const Wait*>> waits_;  // by rank
  std::vector<std::pair<int64_t, std::string>> dropped_;
};

}  // namespace shardwise
