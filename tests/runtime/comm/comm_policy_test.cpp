#include "runtime/comm/comm_policy.h"

#include "tests/support/autograd_thread.h"

#include <gtest/gtest.h>

namespace shardwise::comm_policy_test {
namespace {

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

}  // namespace
}  // namespace shardwise::comm_policy_test
