#include "runtime/redistribute/comm_policy.h"

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

}  // namespace
}  // namespace shardwise::comm_policy_test
