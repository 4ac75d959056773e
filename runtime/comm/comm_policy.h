// runtime/comm/comm_policy.h: what to do about communication that the user did not ask for.
//
//   const CommPolicyScope strict(CommPolicy::kError);
//   at::add(rows, columns);   // throws on every rank, before any message: an operand would have to move
//   redistribute(rows, {Placement::replicate()});   // asked for: not an error
#pragma once

#include <c10/util/FunctionRef.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <string>

namespace shardwise {

/// The policy for messages that an operator sends because of the layouts of its operands. The few numbers that ranks compare to agree on an
/// error or a size are exempt.
enum class CommPolicy : uint8_t { kAllow, kWarn, kError };

/// Sets the policy of this thread for the scope's lifetime, and of the threads on which autograd runs this thread's backward. Scopes nest;
/// the default is kAllow.
class CommPolicyScope {
 public:
  explicit CommPolicyScope(CommPolicy policy);

  static CommPolicy current();

 private:
  c10::DebugInfoGuard guard_;
};

/// Call this before sending. If an operator sends on its own (CommScope), warns or throws c10::ValueError as the policy says, alike on all
/// ranks. Each scope warns once. `what` follows the operator's name: "moves a to b". Cost: a thread-local read.
void check_comm_policy(c10::function_ref<std::string()> what);

}  // namespace shardwise
