#include "ops/embedding/lookup_options.h"

#include "tests/support/autograd_thread.h"

#include <gtest/gtest.h>

namespace shardwise::lookup_options_test {
namespace {

TEST(LookupScopeTest, AutogradsThreadsSeeTheOptionsOfTheirCaller) {
  const LookupScope scope({LookupExchange::kAllToAll, false});
  const auto seen = on_autograd_thread([] { return LookupScope::current(); });
  EXPECT_EQ(seen.exchange, LookupExchange::kAllToAll);
  EXPECT_FALSE(seen.checks_ids);
}

}  // namespace
}  // namespace shardwise::lookup_options_test
