// What only a program in C++ can do wrong with tokens; tests/python/test_experts.py has the rest.
#include "wrappers/expert_dispatch.h"

#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::expert_dispatch_test {
namespace {

TEST(ExpertDispatchTest, RowsOfNoDispatchAreRefused) {
  try {
    combine_tokens(at::ones({2, 3}), RoutedTokens{});
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    expect_error(
        "[combine_tokens] the route was not made by dispatch_tokens(). Give the value that dispatch_tokens() returned.",
        error.what_without_backtrace());
  }
}

}  // namespace
}  // namespace shardwise::expert_dispatch_test
