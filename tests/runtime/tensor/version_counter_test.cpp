#include "runtime/tensor/version_counter.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardwise::version_counter_test {
namespace {

bool share(const at::Tensor& a, const at::Tensor& b) {
  return share_version_counter(*a.unsafeGetTensorImpl(), *b.unsafeGetTensorImpl());
}

TEST(VersionCounterTest, AnAliasSharesItAndACopyOrDataDoesNot) {
  const at::Tensor x = at::ones({4});
  EXPECT_TRUE(share(x, x));
  EXPECT_TRUE(share(x, x.detach()));
  EXPECT_TRUE(share(x.narrow(0, 1, 2), x));
  EXPECT_FALSE(share(x, x.clone()));
  EXPECT_FALSE(share(x, x.variable_data()));
  const c10::InferenceMode inference;
  const at::Tensor uncounted = at::ones({4});
  EXPECT_FALSE(share(uncounted, uncounted));
}

TEST(VersionCounterTest, AComparisonLosesNoWriteOfAnotherThread) {
  const at::Tensor x = at::ones({4}), alias = x.detach();
  const uint32_t before = x.unsafeGetTensorImpl()->version_counter().current_version();
  std::thread writer([&] {
    for (int i = 0; i < 100000; ++i) x.unsafeGetTensorImpl()->bump_version();
  });
  for (int i = 0; i < 100000; ++i) ASSERT_TRUE(share(x, alias));
  writer.join();
  EXPECT_EQ(x.unsafeGetTensorImpl()->version_counter().current_version(), before + 100000);
}

}  // namespace
}  // namespace shardwise::version_counter_test
