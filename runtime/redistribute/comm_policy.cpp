#include "runtime/redistribute/comm_policy.h"

#include "runtime/comm/comm_trace.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

thread_local CommPolicy policy = CommPolicy::kAllow;

}  // namespace

CommPolicyScope::CommPolicyScope(CommPolicy inner) : outer_(policy) { policy = inner; }
CommPolicyScope::~CommPolicyScope() { policy = outer_; }
CommPolicy CommPolicyScope::current() { return policy; }

void check_comm_policy(const Spec& source, const Spec& destination) {
  if (policy == CommPolicy::kAllow) [[likely]]
    return;
  if (!CommScope::is_operator()) return;
  const std::string text = fmt::format("[{}] moves {} to {} on its own. Redistribute it beforehand, or allow it.",
                                       CommScope::current_op(), to_string(source), to_string(destination.layout()));
  TORCH_CHECK_VALUE(policy == CommPolicy::kWarn, text);
  TORCH_WARN(text);
}

}  // namespace shardwise
