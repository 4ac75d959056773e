#include "runtime/comm/comm_policy.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/comm/propagated_value.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

using PropagatedPolicy = PropagatedValue<CommPolicy, 0>;

}  // namespace

CommPolicyScope::CommPolicyScope(CommPolicy policy)
    : guard_(PropagatedPolicy::kind(), std::make_shared<PropagatedPolicy>(policy)) {}

CommPolicy CommPolicyScope::current() { return PropagatedPolicy::current(CommPolicy::kAllow); }

void check_comm_policy(c10::function_ref<std::string()> what) {
  const CommPolicy policy = CommPolicyScope::current();
  if (policy == CommPolicy::kAllow) [[likely]]
    return;
  if (CommScope::current_cause() == CommScope::Cause::kProgram) return;
  const std::string text =
      fmt::format("[{}] {} on its own. Redistribute it beforehand, or allow it.", CommScope::current_op(), what());
  TORCH_CHECK_VALUE(policy == CommPolicy::kWarn, text);
  CommScope::permit();
  TORCH_WARN(text);
}

}  // namespace shardwise
