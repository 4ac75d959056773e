// runtime/comm/comm_policy.h: what to do about communication that the user did not write.
//
//   const CommPolicyScope strict(CommPolicy::kError);
//   at::add(rows, columns);   // throws on every rank, before any message: an operand would have to move
//   redistribute(rows, {Placement::replicate()});   // was asked for, and goes on
#pragma once

#include <c10/util/FunctionRef.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <string>

namespace shardwise {

/// For messages that an operator needs because of how its operands are laid out. The few numbers that ranks compare to agree on an error
/// or on a size do not count.
enum class CommPolicy : uint8_t { kAllow, kWarn, kError };

/// This thread's policy while it lives, and that of the threads on which autograd runs its backward; kAllow without any. They nest.
class CommPolicyScope {
 public:
  explicit CommPolicyScope(CommPolicy policy);

  static CommPolicy current();

 private:
  c10::DebugInfoGuard guard_;
};

/// Before something is sent. Warns, or throws c10::ValueError, where an operator sends on its own (CommScope) and the policy says so;
/// equally on all ranks. A scope is warned once. `what` follows the operator's name: "moves a to b". Cost: a thread-local read.
void check_comm_policy(c10::function_ref<std::string()> what);

}  // namespace shardwise
