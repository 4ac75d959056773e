#include "runtime/comm/events.h"

#include "runtime/comm/caller.h"
#include "runtime/comm/comm_thread.h"
#include "runtime/comm/event_stream.h"
#include "runtime/comm/flight_dump.h"
#include "runtime/comm/tracing.h"
#include "text/table.h"

#include <c10/util/ApproximateClock.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace shardwise {
namespace {

int64_t ticks() { return static_cast<int64_t>(c10::getApproximateTime()); }

/// Calls `visit(event)` for the events from `first` on that CommTraces count.
template <class Visit>
void visit_counted(const EventStream& stream, size_t first, const Visit& visit) {
  if (first == stream.communications.size()) return;
  const std::lock_guard lock(EventStream::mutex());
  for (size_t i = first; i < stream.communications.size(); ++i)
    if (stream.communications[i]->is_counted) visit(*stream.communications[i]);
}

/// Copies of the events from `first` on that fulfil `is_wanted`, with times in nanoseconds.
template <class IsWanted>
std::vector<CommEvent> copies(const EventStream& stream, size_t first, const IsWanted& is_wanted) {
  std::vector<CommEvent> result;
  {
    const std::lock_guard lock(EventStream::mutex());
    for (size_t i = first; i < stream.communications.size(); ++i)
      if (is_wanted(*stream.communications[i])) result.push_back(*stream.communications[i]);
  }
  const auto to_ns = unix_clock();
  for (CommEvent& event : result) {
    event.waited = to_ns(event.begin + event.waited) - to_ns(event.begin);
    for (int64_t* const time : {&event.begin, &event.end})
      if (*time != 0) *time = to_ns(*time);
  }
  return result;
}

bool has_ended(const CommEvent& event) { return event.end != 0; }

}  // namespace

std::mutex& EventStream::mutex() {
  static auto* const mutex = new std::mutex;  // a communication may end while static objects are destroyed
  return *mutex;
}

void EventStream::add(std::shared_ptr<CommEvent> event) {
  const std::lock_guard lock(mutex());
  communications.push_back(std::move(event));
}

EventReader::EventReader(int wants)
    : wants_(static_cast<uint8_t>((wants & kOperators) != 0 ? wants | kCommunications : wants)) {
  CommThread& thread = comm_thread();
  stream_ = thread.stream != nullptr ? thread.stream->shared_from_this() : std::make_shared<EventStream>();
  thread.stream = stream_.get();
  thread.wants |= wants_;
  stream_->readers.push_back(this);
  first_communication_ = stream_->communications.size();
  first_operator_ = stream_->operators.size();
}

void EventReader::stop() {
  if (!std::exchange(is_open_, false)) return;
  std::erase(stream_->readers, this);
  if (CommThread& thread = comm_thread();
      thread.stream == stream_.get()) {  // another thread may have the number of one that ended
    thread.wants = 0;
    for (const EventReader* reader : stream_->readers) thread.wants |= reader->wants_;
    if (stream_->readers.empty()) thread.stream = nullptr;
  }
  const auto seen = std::exchange(stream_, std::make_shared<EventStream>());
  const auto since = [](const auto& events, size_t first) { return std::vector(events.begin() + first, events.end()); };
  stream_->communications = since(seen->communications, std::exchange(first_communication_, 0));
  stream_->operators = since(seen->operators, std::exchange(first_operator_, 0));
}

std::vector<CommEvent> EventReader::collectives() const {
  return copies(*stream_, first_communication_, [](const CommEvent& event) { return event.is_counted; });
}

int64_t EventReader::n_collectives() const {
  int64_t n = 0;
  visit_counted(*stream_, first_communication_, [&](const CommEvent&) { ++n; });
  return n;
}

std::vector<CommEvent> EventReader::communications() const {
  auto result = copies(*stream_, first_communication_, has_ended);
  std::ranges::stable_sort(result, {}, &CommEvent::end);
  return result;
}

int64_t EventReader::n_communications() const {
  const std::lock_guard lock(EventStream::mutex());
  return std::count_if(stream_->communications.begin() + static_cast<int64_t>(first_communication_),
                       stream_->communications.end(), [](const auto& event) { return has_ended(*event); });
}

std::vector<OpEvent> EventReader::operators(bool with_composites) const {
  std::vector<OpEvent> result;
  if ((wants_ & kOperators) == 0) return result;
  const auto to_ns = unix_clock();
  for (size_t i = first_operator_; i < stream_->operators.size(); ++i) {
    OpEvent event = stream_->operators[i];
    if (event.is_composite && !with_composites) continue;
    event.begin = to_ns(event.begin);
    event.end = to_ns(event.end);
    result.push_back(std::move(event));
  }
  return result;
}

int64_t EventReader::n_operators(bool with_composites) const {
  if ((wants_ & kOperators) == 0) return 0;
  return std::count_if(stream_->operators.begin() + static_cast<int64_t>(first_operator_), stream_->operators.end(),
                       [&](const OpEvent& event) { return with_composites || !event.is_composite; });
}

int64_t CommTrace::total(int64_t CommEvent::* number) const {
  int64_t total = 0;
  for (const CommEvent& event : collectives()) total += event.*number;
  return total;
}

std::map<std::string, int64_t> CommTrace::counts() const {
  std::map<std::string, int64_t> counts;
  for (const CommEvent& event : collectives()) ++counts[event.collective];
  return counts;
}

void add_collective(const char* collective, std::vector<int64_t> ranks, std::optional<c10::ScalarType> dtype,
                    int64_t bytes_sent, int64_t bytes_received, int64_t peer, int64_t tag) {
  const CommThread& thread = comm_thread();
  if (thread.stream == nullptr) return;
  const auto now = static_cast<int64_t>(c10::getApproximateTime());
  const auto n_ranks = static_cast<int64_t>(ranks.size());
  const bool has_details = (thread.wants & EventReader::kDetails) != 0;
  thread.stream->add(std::make_shared<CommEvent>(CommEvent{.collective = collective,
                                                           .op = thread.op,
                                                           .n_ranks = n_ranks,
                                                           .ranks = std::move(ranks),
                                                           .dtype = dtype,
                                                           .bytes_sent = bytes_sent,
                                                           .bytes_received = bytes_received,
                                                           .peer = peer,
                                                           .tag = tag,
                                                           .source = has_details ? caller_line() : "",
                                                           .begin = now,
                                                           .end = now,
                                                           .is_counted = true}));
}

void OpSpan::open() {
  if (is_tracing()) return;  // operators do not run while torch.compile traces
  stream_ = comm_thread().stream->shared_from_this();
  first_communication_ = stream_->communications.size();
  first_operator_ = stream_->operators.size();
  begin_ = ticks();
}

void OpSpan::add(OpEvent event) {
  if (stream_.get() != comm_thread().stream) return;  // the readers of its begin have been closed
  event.begin = begin_;
  event.end = ticks();
  visit_counted(*stream_, first_communication_, [&](const CommEvent& sent) {
    ++event.n_collectives;
    event.bytes_received += sent.bytes_received;
  });
  stream_->operators.push_back(std::move(event));
}

void OpSpan::end_kernel(const std::string& op) {
  auto& operators = stream_->operators;
  const bool has_inner = operators.size() > first_operator_;
  const auto encloses = [&](const OpEvent& event) { return event.begin >= operators.back().begin; };
  if (has_inner && operators.back().description->op == op &&
      std::all_of(operators.begin() + static_cast<int64_t>(first_operator_), operators.end(), encloses)) {
    OpEvent inner = std::move(operators.back());
    operators.pop_back();
    return add({.description = std::move(inner.description), .is_composite = inner.is_composite});
  }
  add({.description = std::make_shared<OpDescription>(OpDescription{op, "a kernel of its own"}),
       .is_composite = has_inner});
}

std::string to_string(const std::vector<OpEvent>& operators) {
  detail::TextTable table(
      {{"operator"}, {"rule"}, {"operands"}, {"run as"}, {"results"}, {"bytes received", detail::Align::kRight}});
  for (const OpEvent& event : operators) {
    const OpDescription& call = *event.description;
    const std::string given = fmt::format("{}", fmt::join(call.given, ", "));
    const std::string used = fmt::format("{}", fmt::join(call.used, ", "));
    table.add({call.op, call.rule, given, given == used ? "as given" : used,
               fmt::format("{}", fmt::join(call.results, ", ")), detail::with_commas(event.bytes_received)});
  }
  return table.to_string();
}

}  // namespace shardwise
