// A slice, an index or a diagonal replaced.
#include "tests/support/dense.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::slice_writes_test {
namespace {

const DenseOptions kFew = {.max_combinations = 20};

TEST(SliceWritesTest, AnyLayoutsAreDense) {
  expect_same_as_dense(
      "slice_scatter", [](const Tensors& t) { return at::slice_scatter(t[0], t[1], 0, 1, 7, 2); }, {{8, 3}, {3, 3}},
      kFew);
  expect_same_as_dense(
      "select_scatter", [](const Tensors& t) { return at::select_scatter(t[0], t[1], 0, -2); }, {{8, 3}, {3}}, kFew);
  // self, src, offset, dims
  const std::vector<std::tuple<Dims, Dims, int64_t, int64_t, int64_t>> diagonals = {{{5, 7}, {5}, 0, 0, 1},
                                                                                    {{5, 7}, {4}, 3, 0, 1},
                                                                                    {{5, 7}, {3}, -2, 0, 1},
                                                                                    {{4, 2, 5}, {2, 4}, 0, 0, 2},
                                                                                    {{3, 4, 4}, {3, 3}, 1, 2, 1}};
  for (const auto& [self, src, offset, dim1, dim2] : diagonals)
    expect_same_as_dense(
        "diagonal_scatter",
        [o = offset, a = dim1, b = dim2](const Tensors& t) { return at::diagonal_scatter(t[0], t[1], o, a, b); },
        {self, src}, kFew);
}

TEST(SliceWritesTest, GradientsOfSlicesAreDense) {
  expect_same_as_dense(
      "slice_backward", [](const Tensors& t) { return at::slice_backward(t[0], {8, 3}, 0, 1, 7, 2); }, {{3, 3}}, kFew);
  expect_same_as_dense(
      "select_backward", [](const Tensors& t) { return at::select_backward(t[0], {8, 3}, 0, 2); }, {{3}}, kFew);
  expect_same_as_dense(
      "diagonal_backward", [](const Tensors& t) { return at::diagonal_backward(t[0], {5, 7}, 1, 0, 1); }, {{5}}, kFew);
}

TEST(SliceWritesTest, WhatIsWrittenStaysWhereItIs) {
  const auto written = [](const Tensors& t) { return Tensors{at::select_scatter(t[0], t[1], 0, 2)}; };
  const std::vector<Placement> rows{Placement::shard(0)}, replica{Placement::replicate()};
  EXPECT_EQ(bytes_received(written, {{8, 3}, {3}}, {3}, {rows, replica}), 0);
}

}  // namespace
}  // namespace shardwise::slice_writes_test
