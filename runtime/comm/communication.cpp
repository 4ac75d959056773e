#include "runtime/comm/communication.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/call_notes.h"
#include "runtime/comm/caller.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/error_text.h"
#include "runtime/comm/event_stream.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/message_thread.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/tagged_messages.h"
#include "runtime/comm/tracing.h"
#include "text/check.h"

#include <c10/util/ApproximateClock.h>
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
  SW_CHECK(false,
           "[{}] would have sent {}: a reader starts no message, since one rank may read alone. This is a fault of "
           "Shardwise. Please report it.",
           thread.reader, name_of(name, thread.op));
}

/// The state of this thread. Throws if the group sends and this thread may not send now.
CommThread& thread_of(const Group& group, const char* name) {
  if (!group.sends) [[unlikely]]
    return comm_thread();
  check_not_traced(name);
  CommThread& thread = comm_thread();
  if (thread.reader != nullptr) [[unlikely]]
    refuse_under_reader(thread, name);
  if (GroupRecord::some_is_lost()) [[unlikely]]
    check_not_lost(group, name_of(name, thread.op));
  return thread;
}

constexpr std::chrono::milliseconds kNotePatience{2000};  // for the notes of ranks that fail at about the same time

}  // namespace

Communication::Communication(const Group& group, const Call& call)
    : Communication(thread_of(group, call.name), group, call) {}

Communication::Communication(CommThread& thread, const Group& group, const Call& call)
    : recorder_(FlightRecorder::of_thread(thread, group.ranks[group.index])),
      group_(group.record),
      process_group_(group.process_group),
      call_number_(call.by_all ? group_->next_call() : 0),
      call_(call),
      begun_(group.sends ? recorder_.begin(thread, group, call) : FlightRecorder::unrecorded()),
      last_(begun_.begin),
      is_sent_(group.sends),
      op_(thread.op) {
  if (call_number_ == 2) [[unlikely]]
    calm_gloo_threads();  // the first call may make them
  if ((checks_order() && is_sent_) || thread.stream != nullptr) [[unlikely]]
    emit(thread, group);
}

void Communication::emit(const CommThread& thread, const Group& group) {
  event_ = std::make_shared<CommEvent>(CommEvent{.collective = call_.counted_as ? call_.counted_as : call_.name,
                                                 .op = op_,
                                                 .n_ranks = group.size(),
                                                 .ranks = group.ranks,
                                                 .dtype = call_.dtype,
                                                 .bytes_sent = call_.bytes_sent,
                                                 .bytes_received = call_.bytes_received,
                                                 .is_asked_for = thread.program_asks(),
                                                 .is_sent = is_sent_,
                                                 .number = begun_.number,
                                                 .call = is_sent_ ? begun_.call : call_number_,
                                                 .begin = static_cast<int64_t>(begun_.begin)});
  const bool is_checked = checks_order() && is_sent_;
  if (is_checked || (thread.wants & EventReader::kDetails) != 0) {
    event_->layouts = CommScope::current_layouts();
    event_->source = caller_line();
    if (is_sent_) recorder_.add_details(event_);
  }
  if (is_checked && call_.by_all) compare(group);
  if (thread.stream != nullptr) thread.stream->add(event_);
}

void Communication::compare(const Group& group) {
  bool is_first = true;
  turn_ = group_->turn(is_first);
  CommEvent own = *event_;
  if (!is_first) own.op += " in another thread than its first";
  std::string difference;
  {
    const Wait wait(*this);
    try {
      difference = compare_calls(group, call_, own);
    } catch (const std::exception& error) {
      group_->lose(error_text(error));
      fail();
      throw;
    }
  }
  if (!difference.empty()) FlightRecorder::set_ended(begun_, last_, /*is_done=*/false);
  TORCH_CHECK_VALUE(difference.empty(), difference);
}

Communication::~Communication() {
  FlightRecorder::set_ended(begun_, last_, is_done_);
  if (!event_) [[likely]]
    return;
  const std::lock_guard lock(EventStream::mutex());
  event_->end = static_cast<int64_t>(last_);
  event_->waited = static_cast<int64_t>(waited_);
  event_->has_failed = !is_done_;
}

void Communication::wait(c10::ArrayRef<WorkPtr> works) {
  if (!is_sent_) [[unlikely]]
    return finish();
  last_ = c10::getApproximateTime();
  const Wait wait(*this);
  try {
    wait_for_each(works);
    is_done_ = true;
  } catch (...) {
    rethrow_named();
  }
}

void Communication::count_event() {
  const std::lock_guard lock(EventStream::mutex());
  event_->is_counted = true;
}

void Communication::fail() noexcept {
  FlightRecorder::set_ended(begun_, c10::getApproximateTime(), /*is_done=*/false);
  dump_after_failure(recorder_);
}

void Communication::rethrow_named() {
  fail();
  const RankError error = RankError::current();
  if (error.is_mistake()) throw;  // all ranks raise it alike, or it was raised before any message
  if (recorder_.is_thread()) {    // the error names ranks already
    group_->lose(error.text);
    throw;
  }
  const std::vector<int64_t>& ranks = begun_.group->ranks;
  const std::string line = caller_line();
  leave_note(ranks, {begun_.call, describe() + (line.empty() ? "" : " at " + line)});
  hang_up({.process_group = process_group_, .ranks = ranks});
  const std::string text = fmt::format(
      "[{}] rank {} failed in its {}{} with the ranks {}: {}\nLast calls of the others: {}. Ranks that make "
      "different calls wait for each other in vain: SHARDWISE_CHECK=1 names the first such call.",
      call_.name, recorder_.rank(), begun_.call > 0 ? fmt::format("call {}, ", begun_.call) : "", describe(), ranks,
      error.text, describe_notes(ranks, recorder_.rank(), read_notes(ranks, 0, kNotePatience)));
  group_->lose(text);
  TORCH_CHECK_WITH(DistBackendError, false, text);
}

std::string Communication::describe() const {
  return fmt::format("{} (sends {} bytes, receives {})", name_of(call_.name, op_), call_.bytes_sent,
                     call_.bytes_received);
}

uint32_t Communication::fingerprint(int64_t n_bytes) const {
  Digest digest;
  digest.add(n_bytes);
  if (call_.by_all) {
    digest.add(std::string_view(call_.says_purpose ? "" : call_.name));
    digest.add(static_cast<int64_t>(call_number_));
    digest.add(std::string_view(call_.says_purpose ? "" : op_));
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
