#include "runtime/comm/comm_policy.h"

#include "ops/embedding/lookup_options.h"

#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardwise::comm_policy_test {
namespace {

/// What `read` gives on a thread that works for this one as autograd's do.
template <class Read>
auto on_autograd_thread(const Read& read) {
  const at::ThreadLocalState state;
  decltype(read()) result{};
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    result = read();
  }).join();
  return result;
}

TEST(CommPolicyTest, ScopesNest) {
  EXPECT_EQ(CommPolicyScope::current(), CommPolicy::kAllow);
  const CommPolicyScope strict(CommPolicy::kError);
  {
    const CommPolicyScope inner(CommPolicy::kWarn);
    EXPECT_EQ(CommPolicyScope::current(), CommPolicy::kWarn);
  }
  EXPECT_EQ(CommPolicyScope::current(), CommPolicy::kError);
}

TEST(CommPolicyTest, AutogradsThreadsSeeThePolicyOfTheirCaller) {
  const CommPolicyScope strict(CommPolicy::kError);
  EXPECT_EQ(on_autograd_thread(&CommPolicyScope::current), CommPolicy::kError);
}

TEST(LookupScopeTest, AutogradsThreadsSeeTheOptionsOfTheirCaller) {
  const LookupScope scope({LookupExchange::kAllToAll, false});
  const auto seen = on_autograd_thread([] { return LookupScope::current(); });
  EXPECT_EQ(seen.exchange, LookupExchange::kAllToAll);
  EXPECT_FALSE(seen.checks_ids);
}

}  // namespace
}  // namespace shardwise::comm_policy_test
