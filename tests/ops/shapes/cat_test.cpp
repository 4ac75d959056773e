#include "tests/support/dense.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::cat_test {
namespace {

TEST(CatTest, RulesAreLinear) {
  EXPECT_EQ(to_string(rule("aten::cat")), "cat linear");
  EXPECT_EQ(to_string(rule("aten::stack")), "stack linear");
}

TEST(CatTest, RowsAndColumns) {
  expect_same_as_dense("rows", [](const Tensors& t) { return at::cat({t[0], t[1]}, 0); }, {{2, 4}, {5, 4}});
  expect_same_as_dense("columns", [](const Tensors& t) { return at::cat({t[0], t[1], t[0]}, -1); }, {{5, 2}, {5, 3}});
  expect_same_as_dense("no rows", [](const Tensors& t) { return at::cat({t[0], t[1]}, 0); }, {{0, 4}, {5, 4}});
}

// A tensor of shape [0] may be concatenated with any other.
TEST(CatTest, LegacyEmptyTensors) {
  expect_same_as_dense("legacy", [](const Tensors& t) { return at::cat({t[0], t[1]}, 0); }, {{0}, {5, 4}},
                       {.with_grad = false});
}

TEST(CatTest, DtypesPromote) {
  expect_same_as_dense("promotion", [](const Tensors& t) { return at::cat({t[0].to(at::kFloat), t[1]}, 1); },
                       {{5, 4}, {5, 4}});
}

TEST(CatTest, Stack) {
  for (const int64_t dim : {0, 1, -1})
    expect_same_as_dense("stack", [dim](const Tensors& t) { return at::stack({t[0], t[1]}, dim); }, {{5, 4}, {5, 4}});
  expect_same_as_dense("stack of scalars", [](const Tensors& t) { return at::stack({t[0], t[1]}); }, {{}, {}});
}

TEST(CatTest, OtherDimsStaySharded) {
  const auto cat = [](const Tensors& t) { return Tensors{at::cat({t[0], t[1]}, 1)}; };
  EXPECT_EQ(bytes_received(cat, {{5, 4}, {5, 2}}, {3}, {{Placement::shard(0)}, {Placement::shard(0)}}), 0);
  EXPECT_EQ(bytes_received(cat, {{5, 4}, {5, 2}}, {3}, {{Placement::partial()}, {Placement::partial()}}), 0);
}

}  // namespace
}  // namespace shardwise::cat_test
