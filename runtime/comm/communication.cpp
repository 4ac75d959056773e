#include "runtime/comm/communication.h"

#include "runtime/comm/caller.h"
#include "runtime/comm/comm_profile.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/order_check.h"

#include <c10/util/ApproximateClock.h>
#include <fmt/format.h>

#include <exception>
#include <utility>

namespace shardwise {
namespace {

FlightRecord record_of(const Communication::Call& call) {
  FlightRecord record;
  record.name = call.name;
  record.bytes_sent = call.bytes_sent;
  record.bytes_received = call.bytes_received;
  if (call.dtype) record.dtype = static_cast<int8_t>(*call.dtype);
  return record;
}

}  // namespace

Communication::Communication(const Group& group, const Call& call)
    : recorder_(FlightRecorder::of_thread(group.ranks[group.index])), call_(call), n_ranks_(group.size()) {
  FlightRecord record = record_of(call);
  recorder_.add(group, call.by_all, record);
  number_ = record.number;
  begin_ = last_ = record.begin;
  if (checks_order() || CommProfile::is_active()) [[unlikely]]
    compare_and_note(group);
}

void Communication::compare_and_note(const Group& group) {
  const CheckedCall own{call_.name, call_.dtype, CommScope::current_op(), CommScope::current_layouts(), caller_line()};
  recorder_.add_note({number_, own.layouts, own.source});
  if (checks_order() && call_.by_all) {
    std::string difference;
    {
      const GilRelease no_gil;
      const Wait wait(*this);
      difference = compare_calls(group, own);
    }
    if (!difference.empty()) recorder_.set_ended(number_, last_, FlightRecord::Outcome::kFailed);
    TORCH_CHECK_VALUE(difference.empty(), difference);
  }
  if (CommProfile::is_active()) timed_ = CommProfile::begin(group, own, recorder_, number_);
}

Communication::~Communication() {
  using enum FlightRecord::Outcome;
  recorder_.set_ended(number_, last_, is_done_ ? kDone : kFailed);
  if (timed_) [[unlikely]]
    CommProfile::end(std::move(timed_), call_, {begin_, last_, waited_}, is_done_);
}

void Communication::wait(c10::ArrayRef<WorkPtr> works) {
  last_ = c10::getApproximateTime();
  const GilRelease no_gil;
  const Wait wait(*this);
  for (const WorkPtr& work : works)
    if (work) work->wait();
  is_done_ = true;
}

void Communication::count() {
  if (call_.counted_as) CommTrace::record(call_.counted_as, n_ranks_, call_.bytes_sent, call_.bytes_received);
}

Communication::Wait::Wait(Communication& communication)
    : communication_(communication), n_exceptions_(std::uncaught_exceptions()), span_([&] {
        const char* const op = CommScope::current_op();
        return fmt::format("shardwise::{}{}{}", communication.call_.name, *op == '\0' ? "" : " for ", op);
      }) {
  communication.recorder_.set_waiting(communication.number_, communication.last_);
}

Communication::Wait::~Wait() {
  const uint64_t now = c10::getApproximateTime();
  communication_.waited_ += now - std::exchange(communication_.last_, now);
  const bool has_thrown = std::uncaught_exceptions() > n_exceptions_;
  if (has_thrown) [[unlikely]] {
    communication_.recorder_.set_ended(communication_.number_, now, FlightRecord::Outcome::kFailed);
    dump_after_failure(communication_.recorder_);
  } else {
    communication_.recorder_.set_waiting(communication_.number_, 0);
  }
}

}  // namespace shardwise
