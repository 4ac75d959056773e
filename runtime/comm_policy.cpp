#include "runtime/comm_policy.h"

#include "runtime/comm_trace.h"

#include <fmt/format.h>

#include <string_view>

namespace shardwise {
namespace {

thread_local CommPolicy policy = CommPolicy::kAllow;

/// Operators have a namespace; what users call by name ("redistribute") has none.
bool was_asked_for(std::string_view op) { return op.find("::") == std::string_view::npos; }

}  // namespace

CommPolicyScope::CommPolicyScope(CommPolicy inner) : outer_(policy) { policy = inner; }
CommPolicyScope::~CommPolicyScope() { policy = outer_; }
CommPolicy CommPolicyScope::current() { return policy; }

void check_comm_policy(const Spec& source, const Spec& destination) {
  if (policy == CommPolicy::kAllow) [[likely]]
    return;
  const std::string_view op = CommScope::current_op();
  if (was_asked_for(op)) return;
  const std::string text = fmt::format("[{}] moves {} to {} on its own. Redistribute it beforehand, or allow it.", op,
                                       to_string(source), to_string(destination.layout()));
  TORCH_CHECK_VALUE(policy == CommPolicy::kWarn, text);
  TORCH_WARN(text);
}

}  // namespace shardwise
