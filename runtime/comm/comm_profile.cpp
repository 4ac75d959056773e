#include "runtime/comm/comm_profile.h"

#include "runtime/comm/comm_cause.h"
#include "runtime/comm/comm_thread.h"
#include "runtime/comm/flight_dump.h"

#include <utility>

namespace shardwise {

CommProfile::CommProfile() : outer_(comm_thread().profile) { comm_thread().profile = this; }

void CommProfile::stop() {
  if (std::exchange(is_stopped_, true)) return;
  // Python may close profiles in any order, so this one may be anywhere in the chain.
  CommProfile** link = &comm_thread().profile;
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
  if (outer_ == nullptr) return;
  const std::scoped_lock lock(log_->mutex, outer_->log_->mutex);
  log_->outer = outer_->log_;
  outer_->log_->entries.insert(outer_->log_->entries.end(), log_->entries.begin(), log_->entries.end());
}

bool CommProfile::is_active() { return comm_thread().profile != nullptr; }

size_t CommProfile::size() const {
  const std::lock_guard lock(log_->mutex);
  return log_->entries.size();
}

std::unique_ptr<OpenCommunication> CommProfile::begin(const Group& group, const CheckedCall& call, uint64_t number) {
  auto open = std::make_unique<OpenCommunication>();
  open->log = comm_thread().profile->log_;
  TimedCommunication& values = open->values;
  values.op = call.op;
  values.layouts = call.layouts;
  values.source = call.source;
  values.dtype = call.dtype ? c10::toString(*call.dtype) : "";
  values.ranks = group.ranks;
  values.is_asked_for = program_asks();
  values.call = static_cast<int64_t>(number);
  return open;
}

void CommProfile::end(std::unique_ptr<OpenCommunication> communication, const Communication::Call& call, Ticks ticks,
                      bool is_done) {
  TimedCommunication& values = communication->values;
  values.collective = call.counted_as ? call.counted_as : call.name;
  values.bytes_sent = call.bytes_sent;
  values.bytes_received = call.bytes_received;
  values.has_failed = !is_done;
  for (std::shared_ptr<Log> log = communication->log; log;) {
    const std::lock_guard lock(log->mutex);
    log->entries.push_back({values, ticks});
    log = log->outer;
  }
}

std::vector<TimedCommunication> CommProfile::communications() const {
  const auto to_ns = unix_clock();
  std::vector<TimedCommunication> result;
  const std::lock_guard lock(log_->mutex);
  for (const Entry& entry : log_->entries) {
    TimedCommunication communication = entry.communication;
    communication.begin_ns = to_ns(entry.ticks.begin);
    communication.end_ns = to_ns(entry.ticks.end);
    communication.waited_ns = to_ns(entry.ticks.begin + entry.ticks.waited) - communication.begin_ns;
    result.push_back(std::move(communication));
  }
  return result;
}

}  // namespace shardwise
