// runtime/comm/communication.h: one communication of a rank with the others of a group, from its start to the end of its wait.
//
// Every message of the runtime is sent by a Communication. This is the only place that has messages compared between ranks (order_check.h),
// recorded (flight_recorder.h), emitted as events to readers (events.h) and watched for long waits (flight_watch.h). If the group sends
// nothing (Group::sends), the event is all that happens: nothing is launched, numbered, compared or recorded.
//
//   Communication broadcast(group, {.name = "broadcast", .dtype = at::kFloat, .bytes_received = 4096, .counted_as = "broadcast"});
//   broadcast.run([&] { return backend->broadcast(tensors, options); });         // launched and waited for
//
//   Communication reduction(group, ...);
//   const auto work = reduction.launch([&] { return backend->allreduce(tensors, options); });
//   ...                                                                          // work that does not need the result
//   reduction.wait(work);
#pragma once

#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/gil_release.h"
#include "runtime/comm/group.h"
#include "runtime/comm/profiler_span.h"

#include <c10/util/ArrayRef.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <string>

namespace shardwise {

class Communication {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  using Call = CommCall;

  /// Throws, before any message: c10::Error under a Reading (no_messages.h); c10::ValueError in a process that was forked from a rank;
  /// c10::DistBackendError if an earlier communication of the group failed. Under SHARDWISE_CHECK=1: c10::ValueError on all members if
  /// their calls differ, and c10::DistBackendError if a member does not arrive (order_check.h).
  Communication(const Group& group, const Call& call);
  /// A communication that was not waited for, or whose wait threw, counts as failed.
  ~Communication();
  C10_DISABLE_COPY_AND_ASSIGN(Communication);

  /// If the backend fails in one of the following functions, the group takes no more communications, and the error lists the other ranks'
  /// last calls.

  /// Calls `launch()`, which may wait for other ranks, and returns its result: one Work or several.
  template <class Launch>
  auto launch(const Launch& launch) {
    if (!is_sent_) [[unlikely]] {
      count();
      return decltype(launch()){};
    }
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
  /// Waits for the works that launch() returned. Null works count as done.
  void wait(c10::ArrayRef<WorkPtr> works);
  /// Launches and waits.
  template <class Launch>
  void run(const Launch& launch) {
    finish(launch);
    count();
  }
  /// Launches the last part of a communication that launch() began, and waits for it.
  template <class Launch>
  void finish(const Launch& launch) {
    if (!is_sent_) [[unlikely]]
      return finish();
    const Wait wait(*this);
    try {
      wait_for_each(launch());
      is_done_ = true;
    } catch (...) {
      rethrow_named();
    }
  }
  /// Ends a communication that has nothing to wait for.
  void finish() { is_done_ = true; }

  /// A number that the two ends of a message of `n_bytes` share, and that other messages rarely have: a hash of the group's call number,
  /// the operator and the length. If members may stay away from the call, a hash of the length only; if its messages say what they are for
  /// (CommCall::says_purpose), of the call number and the length.
  uint32_t fingerprint(int64_t n_bytes) const;

 private:
  Communication(CommThread& thread, const Group& group, const Call& call);

  /// Marks that this thread waits, and releases the interpreter's lock: another rank of this process may need the lock to send the awaited
  /// message.
  class Wait {
   public:
    explicit Wait(Communication& communication);
    ~Wait();
    C10_DISABLE_COPY_AND_ASSIGN(Wait);

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
  /// Ends the communication as failed: records this, and a rank that is a process dumps its records to a file.
  void fail() noexcept;
  /// For use in a catch block: calls fail() and rethrows. If the backend failed, marks the group as lost and adds the other ranks' calls to
  /// the error.
  [[noreturn]] void rethrow_named();
  /// "exchange for aten::embedding (sends 8 bytes, receives 16)".
  std::string describe() const;
  /// For readers and the order check: makes the event, compares the call between the ranks, and adds the event to the thread's stream.
  void emit(const CommThread& thread, const Group& group);
  /// Throws: c10::ValueError if the ranks' calls differ.
  void compare(const Group& group);
  /// From now on CommTraces count the communication.
  void count() {
    if (event_ && call_.counted_as) [[unlikely]]
      count_event();
  }
  void count_event();

  FlightRecorder& recorder_;
  std::shared_ptr<GroupRecord> group_;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  uint64_t call_number_;  // the call's number in the group, or 0
  Call call_;
  FlightRecorder::Begun begun_;
  uint64_t last_;        // reading of the clock
  uint64_t waited_ = 0;  // clock ticks that threads have waited
  bool is_done_ = false;
  const bool is_sent_;
  const char* op_;                    // the operator it was begun for, even if another one waits for it
  std::shared_ptr<CommEvent> event_;  // null unless somebody reads it or calls are compared
  GroupRecord::Turn turn_;            // held from the comparison of calls to the launch
};

}  // namespace shardwise
