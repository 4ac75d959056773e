// runtime/comm/comm_profile.h: when each communication of a thread began and ended, and how long the thread waited.
#pragma once

#include "runtime/comm/communication.h"
#include "runtime/comm/order_check.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

/// One communication as one rank saw it. Times are nanoseconds since 1970 by this machine's clock.
struct TimedCommunication {
  std::string collective;  // what it amounts to: "all_gather"
  std::string op;          // the operator that it is for, or ""
  std::string layouts;     // what is moved, or ""
  std::string source;      // the program's line, or "" in a program without Python
  std::string dtype;
  bool is_asked_for = true;    // false: an operator moved its operands on its own
  std::vector<int64_t> ranks;  // the group's
  int64_t call = 0;            // its number among the group's communications; 0 where members may stay away
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t waited_ns = 0;  // this thread waited for so long
  bool has_failed = false;
};

/// A communication that a profile saw begin.
struct OpenCommunication;

/// Records the communications of this thread that begin while it lives, once they end, which may be after stop(). Profiles nest; the
/// innermost sees them, and gives them on.
///
/// Cost: some strings per communication, and the program's line; nothing of it where no profile lives.
class CommProfile {
 public:
  CommProfile();
  ~CommProfile() { stop(); }
  CommProfile(const CommProfile&) = delete;
  CommProfile& operator=(const CommProfile&) = delete;

  /// It sees no more begin, and keeps what it has. On the thread that made it; a second call does nothing.
  void stop();

  /// By their ends. Cost: the clock is compared with the time of day.
  std::vector<TimedCommunication> communications() const;
  size_t size() const;

  static bool is_active();

 private:
  friend class Communication;
  friend struct OpenCommunication;

  struct Ticks {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t waited = 0;
  };
  struct Entry {
    TimedCommunication communication;
    Ticks ticks;
  };

  /// Outlives its profile while a communication is under way, which may end on another thread.
  struct Log {
    std::mutex mutex;
    std::vector<Entry> entries;
    std::shared_ptr<Log> outer;  // of the profile around a stopped one: it has the entries, and wants those that come
  };

  static std::unique_ptr<OpenCommunication> begin(const Group& group, const CheckedCall& call, uint64_t number);
  static void end(std::unique_ptr<OpenCommunication> communication, const Communication::Call& call, Ticks ticks,
                  bool is_done);

  std::shared_ptr<Log> log_ = std::make_shared<Log>();
  CommProfile* outer_;
  bool is_stopped_ = false;
};

struct OpenCommunication {
  TimedCommunication values;
  std::shared_ptr<CommProfile::Log> log;
};

}  // namespace shardwise
