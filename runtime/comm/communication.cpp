#include "runtime/comm/communication.h"

#include "runtime/comm/caller.h"
#include "runtime/comm/comm_profile.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/tracing.h"

#include <c10/util/ApproximateClock.h>
#include <fmt/format.h>

#include <utility>

namespace shardwise {

Communication::Communication(const Group& group, const Call& call)
    : Communication((check_not_traced(call.name), comm_thread()), group, call) {}

Communication::Communication(CommThread& thread, const Group& group, const Call& call)
    : recorder_(FlightRecorder::of_thread(thread, group.ranks[group.index])),
      call_(call),
      begun_(recorder_.begin(thread, group,
                             {.name = call.name,
                              .dtype = call.dtype ? static_cast<int8_t>(*call.dtype) : int8_t{-1},
                              .bytes_sent = call.bytes_sent,
                              .bytes_received = call.bytes_received,
                              .by_all = call.by_all})),
      last_(begun_.begin),
      n_ranks_(group.size()),
      op_(CommScope::current_op()) {
  if (checks_order() || thread.profile != nullptr) [[unlikely]]
    compare_and_note(group);
}

void Communication::compare_and_note(const Group& group) {
  const CheckedCall own{call_.name, call_.dtype, op_, CommScope::current_layouts(), caller_line()};
  recorder_.add_note({begun_.number, own.layouts, own.source});
  if (checks_order() && call_.by_all) {
    std::string difference;
    {
      const Wait wait(*this);
      try {
        difference = compare_calls(group, own);
      } catch (...) {
        fail();
        throw;
      }
    }
    if (!difference.empty()) FlightRecorder::set_ended(begun_, last_, /*is_done=*/false);
    TORCH_CHECK_VALUE(difference.empty(), difference);
  }
  if (CommProfile::is_active()) timed_ = CommProfile::begin(group, own, begun_.call);
}

Communication::~Communication() {
  FlightRecorder::set_ended(begun_, last_, is_done_);
  if (timed_) [[unlikely]]
    CommProfile::end(std::move(timed_), call_, {begun_.begin, last_, waited_}, is_done_);
}

void Communication::wait(c10::ArrayRef<WorkPtr> works) {
  last_ = c10::getApproximateTime();
  const Wait wait(*this);
  try {
    for (const WorkPtr& work : works)
      if (work) work->wait();
    is_done_ = true;
  } catch (...) {
    fail();
    throw;
  }
}

void Communication::count() {
  if (call_.counted_as) CommTrace::record(call_.counted_as, n_ranks_, call_.bytes_sent, call_.bytes_received);
}

void Communication::fail() noexcept {
  FlightRecorder::set_ended(begun_, c10::getApproximateTime(), /*is_done=*/false);
  dump_after_failure(recorder_);
}

Communication::Wait::Wait(Communication& communication)
    : communication_(communication), span_([&] {
        const char* const op = communication.op_;
        return fmt::format("shardwise::{}{}{}", communication.call_.name, *op == '\0' ? "" : " for ", op);
      }) {
  FlightRecorder::set_waiting(communication.begun_, communication.last_);
}

Communication::Wait::~Wait() {
  const uint64_t now = c10::getApproximateTime();
  communication_.waited_ += now - std::exchange(communication_.last_, now);
  if (!communication_.is_done_) FlightRecorder::set_waiting(communication_.begun_, 0);  // else it ends at once
}

}  // namespace shardwise
