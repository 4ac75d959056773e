// runtime/comm/traffic_meter.h: bytes that this process has sent and received with each group of ranks, sampled from the flight recorder.
#pragma once

#include "runtime/comm/flight_recorder.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace shardwise {

/// This rank's communications with a set of ranks, since the start of the world in which the meter was first read.
struct GroupTraffic {
  std::vector<int64_t> ranks;  // by group order
  double n_calls = 0;
  double bytes_sent = 0;
  double bytes_received = 0;
  double seconds = 0;  // in flight; overlapping communications count once each
};

/// A communication that a thread waits for now.
struct PresentWait {
  std::string name;            // "all_reduce"
  std::string op;              // the operator that needs it, or ""
  double seconds = 0;          // so far
  std::vector<int64_t> ranks;  // the group's, by group order
};

/// Reads a flight recorder, at no extra cost for communications. If the ring has dropped records since the last reading (more than
/// FlightRecorder::kRecords), the remaining ones are scaled up to stand for them. For use by one thread.
class TrafficMeter {
 public:
  /// `recorder` must outlive the meter. Null: the recorder that this process's rank has at each reading.
  explicit TrafficMeter(const FlightRecorder* recorder = nullptr);

  /// The traffic by group, in the order of the groups' first communications.
  const std::vector<GroupTraffic>& read();
  /// The longest wait first.
  std::vector<PresentWait> waits() const;

 private:
  void count(const FlightRecord& record, double weight);
  GroupTraffic& of(const GroupCalls& group);
  double seconds_between(uint64_t begin, uint64_t end) const;

  std::function<int64_t(uint64_t)> clock_;  // nanoseconds
  const bool is_of_process_;
  const FlightRecorder* recorder_;
  uint64_t last_ = 0;                           // communications up to this one are counted
  std::map<uint64_t, const GroupCalls*> open_;  // not yet ended when counted, by number
  std::vector<GroupTraffic> traffic_;
};

}  // namespace shardwise
