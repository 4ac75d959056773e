#include "runtime/comm/communication.h"

#include "runtime/comm/call_notes.h"
#include "runtime/comm/caller.h"
#include "runtime/comm/comm_profile.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/error_text.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/lost_groups.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/tracing.h"

#include <c10/util/ApproximateClock.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <utility>

namespace shardwise {

namespace {

/// "all_reduce for aten::mm".
std::string name_of(const char* name, const char* op) {
  return fmt::format("{}{}{}", name, *op == '\0' ? "" : " for ", op);
}

[[noreturn]] void refuse_under_reader(const CommThread& thread, const char* name) {
  TORCH_CHECK(
      false,
      fmt::format("[{}] would have sent {}: a reader starts no message, since one rank may read alone. This is a "
                  "fault of Shardwise. Please report it.",
                  thread.reader, name_of(name, thread.op)));
}

CommThread& thread_that_may_send(const Group& group, const char* name) {
  check_not_traced(name);
  CommThread& thread = comm_thread();
  if (thread.reader != nullptr) [[unlikely]]
    refuse_under_reader(thread, name);
  if (some_group_is_lost()) [[unlikely]]
    check_not_lost(group, name_of(name, thread.op));
  return thread;
}

/// True for errors that all ranks raise alike, or that were raised before any message.
bool is_refusal(const std::exception& error) {
  const auto is = [&]<class... Errors>(std::in_place_type_t<Errors>...) {
    return (... || (dynamic_cast<const Errors*>(&error) != nullptr));
  };
  return is(std::in_place_type<c10::ValueError>, std::in_place_type<c10::TypeError>,
            std::in_place_type<c10::IndexError>, std::in_place_type<c10::NotImplementedError>);
}

constexpr std::chrono::milliseconds kNotePatience{2000};  // for the notes of ranks that fail at about the same time

}  // namespace

Communication::Communication(const Group& group, const Call& call)
    : Communication(thread_that_may_send(group, call.name), group, call) {}

Communication::Communication(CommThread& thread, const Group& group, const Call& call)
    : recorder_(FlightRecorder::of_thread(thread, group.ranks[group.index])),
      group_(group.record),
      call_number_(call.by_all ? group_->next_call() : 0),
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
  CheckedCall own{call_.name, call_.dtype, call_.length, op_, CommScope::current_layouts(), caller_line(), begun_.call};
  recorder_.add_note({begun_.number, own.layouts, own.source});
  if (checks_order() && call_.by_all) {
    bool is_first = true;
    turn_ = group_->turn(is_first);
    if (!is_first) own.op += " in another thread than its first";
    std::string difference;
    {
      const Wait wait(*this);
      try {
        difference = compare_calls(group, own);
      } catch (const std::exception& error) {
        lose_group(*group_, error_text(error));
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
    wait_for_each(works);
    is_done_ = true;
  } catch (...) {
    rethrow_named();
  }
}

void Communication::count() {
  if (call_.counted_as) CommTrace::record(call_.counted_as, n_ranks_, call_.bytes_sent, call_.bytes_received);
}

void Communication::fail() noexcept {
  FlightRecorder::set_ended(begun_, c10::getApproximateTime(), /*is_done=*/false);
  dump_after_failure(recorder_);
}

void Communication::rethrow_named() {
  fail();
  try {
    throw;
  } catch (const std::exception& error) {
    if (is_refusal(error)) throw;
    if (recorder_.is_thread()) {  // the error names ranks already
      lose_group(*group_, error_text(error));
      throw;
    }
    const FlightRecord record = recorder_.find(begun_.number).value_or(FlightRecord());
    const std::vector<int64_t> ranks = record.group ? record.group->ranks : std::vector<int64_t>();
    const std::string line = caller_line();
    leave_note(ranks, {begun_.call, describe() + (line.empty() ? "" : " at " + line)});
    const std::string text = fmt::format(
        "[{}] rank {} failed in its {}{} with the ranks {}: {}\nLast calls of the others: {}. Ranks that make "
        "different calls wait for each other in vain: SHARDWISE_CHECK=1 names the first such call.",
        call_.name, recorder_.rank(), begun_.call > 0 ? fmt::format("call {}, ", begun_.call) : "", describe(), ranks,
        error_text(error), describe_notes(ranks, recorder_.rank(), read_notes(ranks, 0, kNotePatience)));
    lose_group(*group_, text);
    TORCH_CHECK_WITH(DistBackendError, false, text);
  }
}

std::string Communication::describe() const {
  return fmt::format("{} (sends {} bytes, receives {})", name_of(call_.name, op_), call_.bytes_sent,
                     call_.bytes_received);
}

uint32_t Communication::fingerprint(int64_t n_bytes) const {
  Digest digest;
  digest.add(n_bytes);
  if (call_.by_all) {
    digest.add(std::string_view(call_.name));
    digest.add(static_cast<int64_t>(call_number_));
    digest.add(std::string_view(op_));
  }
  return static_cast<uint32_t>(digest.value());
}

Communication::Wait::Wait(Communication& communication)
    : communication_(communication),
      span_([&] { return "shardwise::" + name_of(communication.call_.name, communication.op_); }) {
  FlightRecorder::set_waiting(communication.begun_, communication.last_);
}

Communication::Wait::~Wait() {
  const uint64_t now = c10::getApproximateTime();
  communication_.waited_ += now - std::exchange(communication_.last_, now);
  if (!communication_.is_done_) FlightRecorder::set_waiting(communication_.begun_, 0);  // if done, it ends at once
}

}  // namespace shardwise
