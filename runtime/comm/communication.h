// runtime/comm/communication.h: one communication of a rank with the others of a group, from its start to the end of its wait.
//
// Every message of the runtime is sent within one. What is compared between ranks (order_check.h), recorded (flight_recorder.h), counted
// (comm_trace.h), timed (comm_profile.h) and warned about (flight_watch.h) is said here and nowhere else.
//
//   Communication broadcast(group, {.name = "broadcast", .dtype = at::kFloat, .bytes_received = 4096, .counted_as = "broadcast"});
//   broadcast.run([&] { return backend->broadcast(tensors, options); });         // launched and waited for
//
//   Communication reduction(group, ...);
//   const auto work = reduction.launch([&] { return backend->allreduce(tensors, options); });
//   ...                                                                          // work that does not need it
//   reduction.wait(work);
#pragma once

#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/gil_release.h"
#include "runtime/comm/group.h"
#include "runtime/comm/profiler_span.h"

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <optional>
#include <string>

namespace shardwise {

struct OpenCommunication;

class Communication {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// What a rank is about to do. Texts live as long as the program.
  struct Call {
    const char* name;  // equal on all ranks, as are dtype, length and by_all
    std::optional<c10::ScalarType> dtype = {};
    int64_t length = -1;     // elements that every rank brings; -1 where ranks bring different numbers
    int64_t bytes_sent = 0;  // by this rank, without what it sends to itself
    int64_t bytes_received = 0;
    const char* counted_as = nullptr;  // null: no CommTrace counts it
    bool by_all = true;                // false: members without a message may stay away, and the calls are not compared
  };

  /// Throws, before any message: c10::Error under a Reading (no_messages.h); c10::ValueError in a process that was forked from a rank;
  /// c10::DistBackendError where a communication of the group has failed before. Under SHARDWISE_CHECK=1, c10::ValueError on all members where
  /// their calls differ, and c10::DistBackendError where one does not come (order_check.h).
  Communication(const Group& group, const Call& call);
  /// One that was not waited for, or whose wait threw, has failed.
  ~Communication();
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;

  /// Where the backend fails in what follows, the group takes no more communications, and the error says what the other ranks did last.

  /// Calls `launch()`, which may wait for other ranks, and returns what it gives: a Work, or several.
  template <class Launch>
  auto launch(const Launch& launch) {
    const Wait wait(*this);
    try {
      auto works = launch();
      turn_ = {};
      count();
      return works;
    } catch (...) {
      rethrow_named();
    }
  }
  /// Waits for what was launched. Nulls count as done.
  void wait(c10::ArrayRef<WorkPtr> works);
  /// Both.
  template <class Launch>
  void run(const Launch& launch) {
    finish(launch);
    count();
  }
  /// Launches a last part of what was launched before, and waits for it.
  template <class Launch>
  void finish(const Launch& launch) {
    const Wait wait(*this);
    try {
      wait_for_each(launch());
      is_done_ = true;
    } catch (...) {
      rethrow_named();
    }
  }
  /// There is nothing to wait for.
  void finish() { is_done_ = true; }

  /// A number that the two ends of a message of `n_bytes` have in common, and hardly another message: of which call of the group it is,
  /// for which operator, and how long. Where members may stay away from the call, of its length alone.
  uint32_t fingerprint(int64_t n_bytes) const;

 private:
  Communication(CommThread& thread, const Group& group, const Call& call);

  /// This thread waits, without the interpreter's lock: another rank of this process may need that to send what this one waits for.
  class Wait {
   public:
    explicit Wait(Communication& communication);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    GilRelease no_gil_;
    Communication& communication_;
    ProfilerSpan span_;
  };

  static void wait_for_each(const WorkPtr& work) { work->wait(); }
  static void wait_for_each(c10::ArrayRef<WorkPtr> works) {
    for (const WorkPtr& work : works)
      if (work) work->wait();
  }
  /// An exception ends the wait: the record says so, and a process writes its records to a file.
  void fail() noexcept;
  /// Within a catch: fail(), and rethrows. Where the backend failed, the group has, and the error names the other ranks' calls.
  [[noreturn]] void rethrow_named();
  /// "exchange for aten::embedding (sends 8 bytes, receives 16)".
  std::string describe() const;
  /// Where somebody asked: compares it between the ranks, and notes layouts and the program's line.
  void compare_and_note(const Group& group);
  /// Tells the CommTraces, once.
  void count();

  FlightRecorder& recorder_;
  std::shared_ptr<GroupRecord> group_;
  uint64_t call_number_;  // among those of the group, or 0
  Call call_;
  FlightRecorder::Begun begun_;
  uint64_t last_;        // reading of the clock
  uint64_t waited_ = 0;  // clock ticks that threads have waited
  int64_t n_ranks_;
  bool is_done_ = false;
  const char* op_;  // the operator that it was begun for, whichever runs when it is waited for
  std::unique_ptr<OpenCommunication> timed_;  // null unless this thread is profiled
  GroupRecord::Turn turn_;                    // where calls are compared: from the comparison to the launch
};

}  // namespace shardwise
