// runtime/dispatch/op_profile.h: when each operator of a thread began and ended, beside what op_trace.h tells of it.
#pragma once

#include "runtime/dispatch/decision.h"
#include "runtime/dispatch/op_trace.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace shardwise {
namespace detail {

/// What makes OpTrace::is_active() true: one number, so that an operator looks once.
void add_op_watcher(int n);
/// Whether a trace lives, which wants each call's texts.
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

/// Records this thread's operators while it lives, by their ends. The innermost sees them, and gives them on at its end.
///
/// Cost of a call: a look into a table, and 48 bytes; its texts are made where its arguments' layouts are new. Nothing where no profile
/// lives: OpTrace::is_active() knows of profiles, too.
class OpProfile {
 public:
  OpProfile();
  ~OpProfile() { stop(); }
  OpProfile(const OpProfile&) = delete;
  OpProfile& operator=(const OpProfile&) = delete;

  /// It sees no more, and keeps what it has. On the thread that made it; a second call does nothing.
  void stop();
  std::vector<TimedOperator> operators() const;
  size_t size() const { return calls_.size(); }

  /// The innermost of this thread, or null.
  static OpProfile* current();

  /// What is known of calls with this key; null at first.
  std::shared_ptr<const OpRecord> find(const DecisionKey& key) const;
  /// `specs`: those that the key is made of.
  std::shared_ptr<const OpRecord> remember(const DecisionKey& key, OpRecord record, std::vector<SpecPtr> specs);
  /// A call of a kernel in place of a rule, around the calls since there were `n_before`. Where it did nothing but call the operator of
  /// its own name, both are one call.
  void add_kernel(const OpRecord& record, size_t n_before, uint64_t begin, uint64_t end);
  /// A call, with the processor's clock at its ends.
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
    std::vector<SpecPtr> specs;  // kept alive: an address in a key is never used again
  };
  /// Whether the last call is around all others from `first` on.
  bool is_within_one(size_t first) const;
  struct Hash {
    size_t operator()(const DecisionKey& key) const { return key.hash(); }
  };

  std::vector<Call> calls_;
  std::unordered_map<DecisionKey, Known, Hash> known_;
  std::unordered_map<std::string, std::shared_ptr<const OpRecord>> kernels_;
  OpProfile* outer_;
  bool is_stopped_ = false;
};

}  // namespace shardwise
