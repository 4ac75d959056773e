#include "runtime/comm/comm_profile.h"

#include "runtime/comm/comm_cause.h"
#include "runtime/comm/comm_thread.h"
#include "runtime/comm/flight_dump.h"

#include <utility>

namespace shardwise {

CommProfile::CommProfile() : outer_(comm_thread().profile) { comm_thread().profile = this; }

void CommProfile::stop() {
  if (std::exchange(is_stopped_, true)) return;
  // Python closes profiles in any order: leave the chain wherever this one stands in it.
  CommProfile** link = &comm_thread().profile;
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
  if (outer_ == nullptr) return;
  outer_->entries_.insert(outer_->entries_.end(), entries_.begin(), entries_.end());
}

bool CommProfile::is_active() { return comm_thread().profile != nullptr; }

std::unique_ptr<TimedCommunication> CommProfile::begin(const Group& group, const CheckedCall& call, uint64_t number) {
  auto timed = std::make_unique<TimedCommunication>();
  timed->op = call.op;
  timed->layouts = call.layouts;
  timed->source = call.source;
  timed->dtype = call.dtype ? c10::toString(*call.dtype) : "";
  timed->ranks = group.ranks;
  timed->is_asked_for = program_asks();
  timed->call = static_cast<int64_t>(number);
  return timed;
}

void CommProfile::end(std::unique_ptr<TimedCommunication> communication, const Communication::Call& call, Ticks ticks,
                      bool is_done) {
  CommProfile* const profile = comm_thread().profile;
  if (profile == nullptr) return;
  communication->collective = call.counted_as ? call.counted_as : call.name;
  communication->bytes_sent = call.bytes_sent;
  communication->bytes_received = call.bytes_received;
  communication->has_failed = !is_done;
  profile->entries_.push_back({std::move(*communication), ticks});
}

std::vector<TimedCommunication> CommProfile::communications() const {
  const auto to_ns = unix_clock();
  std::vector<TimedCommunication> result;
  for (const Entry& entry : entries_) {
    TimedCommunication communication = entry.communication;
    communication.begin_ns = to_ns(entry.ticks.begin);
    communication.end_ns = to_ns(entry.ticks.end);
    communication.waited_ns = to_ns(entry.ticks.begin + entry.ticks.waited) - communication.begin_ns;
    result.push_back(std::move(communication));
  }
  return result;
}

}  // namespace shardwise
