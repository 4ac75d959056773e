// runtime/dispatch/op_profile.h: begin and end of each operator of a thread, in addition to the records of op_trace.h.
#pragma once

#include "runtime/dispatch/decision.h"
#include "runtime/dispatch/op_trace.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace shardwise {
namespace detail {

/// Changes the number of traces and profiles that make OpTrace::is_active() true. A single number, so that an operator reads only one.
void add_op_watcher(int n);
/// Whether a trace is active, which needs the texts of each call.
bool has_op_trace();

}  // namespace detail

/// One call of an operator on one rank. Times are nanoseconds since 1970 by this machine's clock.
struct TimedOperator {
  std::shared_ptr<const OpRecord> record;  // of the first call with these arguments, without its bytes
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t n_collectives = 0;
  int64_t bytes_received = 0;
};

/// Records this thread's operators during its lifetime, by their ends. The innermost profile records, and passes its calls to the outer one
/// when it stops.
///
/// Cost of a call: a table lookup and 48 bytes; texts are made only for arguments with new layouts. Nothing if no profile is active,
/// because OpTrace::is_active() covers profiles too.
class OpProfile {
 public:
  OpProfile();
  ~OpProfile() { stop(); }
  OpProfile(const OpProfile&) = delete;
  OpProfile& operator=(const OpProfile&) = delete;

  /// Stops recording and keeps the recorded calls. Call it on the thread that made the profile; a second call does nothing.
  void stop();
  std::vector<TimedOperator> operators() const;
  size_t size() const { return calls_.size(); }

  /// The innermost profile of this thread, or null.
  static OpProfile* current();

  /// The record of calls with this key; null if there was none.
  std::shared_ptr<const OpRecord> find(const DecisionKey& key);
  /// `specs`: the specs that the key contains.
  std::shared_ptr<const OpRecord> remember(const DecisionKey& key, OpRecord record, std::vector<SpecPtr> specs);
  /// Adds a call of a kernel that replaces a rule. The profile had `n_before` calls when the kernel began. If the kernel only called the
  /// operator of its own name, both count as one call.
  void add_kernel(const OpRecord& record, size_t n_before, uint64_t begin, uint64_t end);
  /// Adds a call; `begin` and `end` are readings of the processor's clock.
  void add(std::shared_ptr<const OpRecord> record, uint64_t begin, uint64_t end, int64_t n_collectives,
           int64_t bytes_received);

 private:
  struct Call {
    std::shared_ptr<const OpRecord> record;
    uint64_t begin;
    uint64_t end;
    int64_t n_collectives;
    int64_t bytes_received;
  };
  struct Known {
    std::shared_ptr<const OpRecord> record;
    std::vector<SpecPtr> specs;  // kept alive, so that an address in a key is never reused
  };
  /// Whether the last call encloses all others from `first` on.
  bool is_within_one(size_t first) const;

  std::vector<Call> calls_;
  BoundedMap<DecisionKey, Known, DecisionCache::kMaxDecisions> known_;
  std::unordered_map<std::string, std::shared_ptr<const OpRecord>> kernels_;
  OpProfile* outer_;
  bool is_stopped_ = false;
};

}  // namespace shardwise
