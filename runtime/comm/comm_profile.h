// runtime/comm/comm_profile.h: begin, end and wait time of each communication of a thread.
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
  std::string collective;  // the collective it amounts to: "all_gather"
  std::string op;          // the operator that needs it, or ""
  std::string layouts;     // layouts of the moved tensor, or ""
  std::string source;      // the program's line, or "" in a program without Python
  std::string dtype;
  bool is_asked_for = true;    // false: an operator moved its operands on its own
  std::vector<int64_t> ranks;  // the group's
  int64_t call = 0;            // its number among the group's communications; 0 if members may stay away
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t waited_ns = 0;  // time that this thread waited
  bool has_failed = false;
};

/// A communication whose begin a profile has recorded.
struct OpenCommunication;

/// Records the communications of this thread that begin during its lifetime. Each is recorded when it ends, which may be after stop().
/// Profiles nest: the innermost one records, and passes its entries to the outer one when it stops.
///
/// Cost: some strings per communication, and the lookup of the program's line; nothing if no profile is active.
class CommProfile {
 public:
  CommProfile();
  ~CommProfile() { stop(); }
  CommProfile(const CommProfile&) = delete;
  CommProfile& operator=(const CommProfile&) = delete;

  /// Stops recording new communications and keeps the recorded ones. Call it on the thread that made the profile; a second call does
  /// nothing.
  void stop();

  /// The recorded communications, by their ends. Cost: compares the clock with the time of day.
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

  /// Kept alive by communications in flight, which may end after their profile and on another thread.
  struct Log {
    std::mutex mutex;
    std::vector<Entry> entries;
    std::shared_ptr<Log> outer;  // set by stop(): the outer profile, which got the entries and gets later ones
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
