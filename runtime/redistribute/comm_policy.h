// runtime/redistribute/comm_policy.h: what to do about communication that the user did not write.
//
//   const CommPolicyScope strict(CommPolicy::kError);
//   at::add(rows, columns);   // throws on every rank, before any message: an operand would have to move
//   redistribute(rows, {Placement::replicate()});   // was asked for, and goes on
#pragma once

#include "runtime/tensor/spec.h"

#include <c10/util/ThreadLocalDebugInfo.h>

namespace shardwise {

/// For messages that an operator needs because of how its operands are laid out.
enum class CommPolicy : uint8_t { kAllow, kWarn, kError };

/// This thread's policy while it lives, and that of the threads on which autograd runs its backward; kAllow without any. They nest.
class CommPolicyScope {
 public:
  explicit CommPolicyScope(CommPolicy policy);

  static CommPolicy current();

 private:
  c10::DebugInfoGuard guard_;
};

/// Before a move that sends something. Warns, or throws c10::ValueError, where an operator asked for it (CommScope) and the policy
/// says so; equally on all ranks. Cost: a thread-local read.
void check_comm_policy(const Spec& source, const Spec& destination);

}  // namespace shardwise
