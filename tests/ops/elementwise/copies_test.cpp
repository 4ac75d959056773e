#include "tests/support/dense.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::copies_test {
namespace {

TEST(CopiesTest, RulesSayWhatPasses) {
  EXPECT_EQ(to_string(rule("aten::clone")), "pointwise passing");
  EXPECT_EQ(to_string(rule("aten::detach")), "pointwise passing");
  EXPECT_EQ(to_string(rule("aten::_to_copy")), "pointwise linear");
}

TEST(CopiesTest, Clones) {
  for (const Dims& sizes : {Dims{}, Dims{0}, Dims{2}, Dims{5, 4}}) {
    expect_same_as_dense("clone", [](const Tensors& t) { return t[0].clone(); }, {sizes});
    expect_same_as_dense("contiguous", [](const Tensors& t) { return t[0].contiguous(); }, {sizes});
  }
  expect_same_as_dense("detach", [](const Tensors& t) { return t[0].detach(); }, {{5, 4}});
}

TEST(CopiesTest, Casts) {
  expect_same_as_dense("to float32", [](const Tensors& t) { return t[0].to(at::kFloat); }, {{5, 4}});
  expect_same_as_dense("to int64", [](const Tensors& t) { return t[0].to(at::kLong); }, {{5, 4}});
  expect_same_as_dense("to bool", [](const Tensors& t) { return t[0].to(at::kBool); }, {{5, 4}},
                       {.low = -1, .high = 2});
  expect_same_as_dense("int to float64", [](const Tensors& t) { return t[0].to(at::kDouble); }, {{5, 4}},
                       {.dtype = at::kLong});
}

TEST(CopiesTest, CopyKeepsTheTargetsLayout) {
  expect_same_as_dense("copy_", [](const Tensors& t) { return t[0].clone().copy_(t[1]); }, {{5, 4}, {5, 4}});
  expect_same_as_dense("copy_ broadcasts", [](const Tensors& t) { return t[0].clone().copy_(t[1]); }, {{5, 4}, {4}});
  expect_same_as_dense("copy_ casts", [](const Tensors& t) { return t[0].to(at::kLong).copy_(t[1]); }, {{5, 4}, {5, 4}},
                       {.with_grad = false});
}

TEST(CopiesTest, NothingIsSent) {
  const auto copies = [](const Tensors& t) { return Tensors{t[0].clone(), t[0].detach()}; };
  const auto cast = [](const Tensors& t) { return Tensors{t[0].to(at::kFloat)}; };
  for (const Placement& placement :
       {Placement::shard(0), Placement::shard(1, {0, 3, 1}), Placement::partial(), Placement::replicate()}) {
    EXPECT_EQ(bytes_received(copies, {{5, 4}}, {3}, {{placement}}), 0) << to_string(placement);
    if (placement.is_partial()) continue;  // float32 may not hold the terms
    EXPECT_EQ(bytes_received(cast, {{5, 4}}, {3}, {{placement}}), 0) << to_string(placement);
  }
}

}  // namespace
}  // namespace shardwise::copies_test
