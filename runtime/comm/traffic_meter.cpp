#include "runtime/comm/traffic_meter.h"

#include "runtime/comm/flight_dump.h"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <iterator>

namespace shardwise {
namespace {

const FlightRecorder* recorder_of_process() {
  for (const FlightRecorder* recorder : FlightRecorder::all())
    if (!recorder->is_thread()) return recorder;
  return nullptr;
}

}  // namespace

TrafficMeter::TrafficMeter(const FlightRecorder* recorder)
    : clock_(unix_clock()), is_of_process_(recorder == nullptr), recorder_(recorder) {
  read();
}

const std::vector<GroupTraffic>& TrafficMeter::read() {
  if (const FlightRecorder* const now = is_of_process_ ? recorder_of_process() : recorder_; now != recorder_) {
    recorder_ = now;
    open_.clear();
    last_ = 0;
  }
  if (recorder_ == nullptr) return traffic_;
  last_ = std::max(last_, recorder_->first());
  for (auto each = open_.begin(); each != open_.end();) {
    const auto record = recorder_->find(each->first);
    if (record && record->end != 0) of(*each->second).seconds += seconds_between(record->begin, record->end);
    each = !record || record->end != 0 ? open_.erase(each) : std::next(each);
  }
  std::vector<FlightRecord> records = recorder_->records();
  std::erase_if(records, [&](const FlightRecord& record) { return record.number <= last_; });
  if (records.empty()) return traffic_;
  const double n_new = static_cast<double>(records.back().number - last_);
  for (const FlightRecord& record : records) count(record, n_new / static_cast<double>(records.size()));
  last_ = records.back().number;
  return traffic_;
}

void TrafficMeter::count(const FlightRecord& record, double weight) {
  GroupTraffic& traffic = of(*record.group);
  traffic.n_calls += weight;
  traffic.bytes_sent += weight * static_cast<double>(record.bytes_sent);
  traffic.bytes_received += weight * static_cast<double>(record.bytes_received);
  if (record.end == 0)
    open_.insert({record.number, record.group});
  else
    traffic.seconds += weight * seconds_between(record.begin, record.end);
}

GroupTraffic& TrafficMeter::of(const GroupCalls& group) {
  auto known = std::ranges::find(traffic_, group.ranks, &GroupTraffic::ranks);
  if (known == traffic_.end()) known = traffic_.insert(known, GroupTraffic{group.ranks});
  return *known;
}

double TrafficMeter::seconds_between(uint64_t begin, uint64_t end) const {
  return static_cast<double>(clock_(end) - clock_(begin)) * 1e-9;
}

std::vector<PresentWait> TrafficMeter::waits() const {
  std::vector<PresentWait> result;
  if (recorder_ == nullptr) return result;
  const uint64_t now = c10::getApproximateTime();
  for (const FlightRecord& record : recorder_->waits())
    result.push_back({record.name, record.op.data(), seconds_between(record.waits_since, now), record.group->ranks});
  std::ranges::sort(result, std::greater{}, &PresentWait::seconds);
  return result;
}

}  // namespace shardwise
