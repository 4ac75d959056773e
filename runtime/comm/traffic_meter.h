// runtime/comm/traffic_meter.h: what this process has sent and received with each group of ranks, read from the flight recorder now and then.
#pragma once

#include "runtime/comm/flight_recorder.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace shardwise {

/// Of the communications of this rank with a set of ranks, from the beginning of the world in which the meter was first read.
struct GroupTraffic {
  std::vector<int64_t> ranks;  // by group order
  double n_calls = 0;
  double bytes_sent = 0;
  double bytes_received = 0;
  double seconds = 0;  // in which they were under way; those that overlap count once each
};

/// A communication that a thread waits for now.
struct PresentWait {
  std::string name;            // "all_reduce"
  std::string op;              // the operator that it is for, or ""
  double seconds = 0;          // so far
  std::vector<int64_t> ranks;  // the group's, by group order
};

/// Reads a flight recorder. Where the ring has dropped records since the last reading (more than
/// FlightRecorder::kRecords of them), those that it has stand for the others, too. Nothing is added to a communication's cost.
/// For one thread.
class TrafficMeter {
 public:
  /// Of the rank that this process is, whichever recorder it has when the meter is read; or of a recorder that outlives the meter.
  explicit TrafficMeter(const FlightRecorder* recorder = nullptr);

  /// By group, in the order of their first communications.
  const std::vector<GroupTraffic>& read();
  /// Longest first.
  std::vector<PresentWait> waits() const;

 private:
  void count(const FlightRecord& record, double weight);
  GroupTraffic& of(const GroupCalls& group);
  double seconds_between(uint64_t begin, uint64_t end) const;

  std::function<int64_t(uint64_t)> clock_;  // nanoseconds
  const bool is_of_process_;
  const FlightRecorder* recorder_;
  uint64_t last_ = 0;                           // communications up to this one are counted
  std::map<uint64_t, const GroupCalls*> open_;  // those that had not ended, by number
  std::vector<GroupTraffic> traffic_;
};

}  // namespace shardwise
