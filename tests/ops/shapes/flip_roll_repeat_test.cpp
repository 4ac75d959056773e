// flip, roll, rot90 and repeat, triangles and diagonals against dense ones, and what moves.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::flip_roll_repeat_test {
namespace {

const Placement kRows = Placement::shard(0), kColumns = Placement::shard(1),
                kUneven = Placement::shard(0, {1, 0, 5, 3});

TEST(FlipRollRepeatTest, FlippedAndRolledAreDense) {
  expect_same_as_dense("flip", [](const Tensors& t) { return Tensors{t[0].flip({0}), t[0].flip({0, -1})}; }, {{7, 4}});
  expect_same_as_dense("flip of a scalar", [](const Tensors& t) { return t[0].flip({0}); }, {{}});
  for (int64_t shift : {0, 2, -3, 9})
    expect_same_as_dense(
        "roll",
        [=](const Tensors& t) { return Tensors{t[0].roll(shift, 0), t[0].roll({shift, 1}, {0, 1}), t[0].roll(shift)}; },
        {{7, 4}}, {.max_combinations = 20});
  for (int64_t k : {1, 2, 3, 4})
    expect_same_as_dense("rot90", [=](const Tensors& t) { return t[0].rot90(k, {0, 1}); }, {{5, 4}},
                         {.max_combinations = 12});
}

TEST(FlipRollRepeatTest, EachElementOfAFlippedOrRolledDimMovesOnce) {
  const auto flip = [](const Tensors& t) { return Tensors{t[0].flip(0)}; };
  const auto roll = [](const Tensors& t) { return Tensors{t[0].roll(1, 0)}; };
  EXPECT_EQ(bytes_received(flip, {{8, 3}}, {4}, {{kRows}}), 2 * 3 * 8);
  EXPECT_EQ(bytes_received(roll, {{8, 3}}, {4}, {{kRows}}), 3 * 8);
  for (const auto& op : {std::function<Tensors(const Tensors&)>(flip), std::function<Tensors(const Tensors&)>(roll)}) {
    EXPECT_EQ(bytes_received(op, {{8, 3}}, {4}, {{kColumns}}), 0);
    EXPECT_EQ(bytes_received(op, {{8, 3}}, {4}, {{Placement::partial(Reduce::kMax)}}), 0);
  }
}

TEST(FlipRollRepeatTest, RepeatedIsDense) {
  for (const std::vector<int64_t>& times : {std::vector<int64_t>{1, 2}, {2, 1}, {3, 1, 1}})
    expect_same_as_dense("repeat", [=](const Tensors& t) { return t[0].repeat(times); }, {{5, 3}},
                         {.max_combinations = 20});
  expect_same_as_dense("repeat no times",
                       [](const Tensors& t) { return Tensors{t[0].repeat({0, 1}), t[0].repeat({2, 1, 0})}; }, {{5, 3}},
                       {.with_grad = false});
  const auto repeat = [](const Tensors& t) { return Tensors{t[0].repeat({2, 1, 3})}; };
  EXPECT_EQ(bytes_received(repeat, {{9, 3}}, {4}, {{kUneven}}), 0);
  expect_same_as_dense("repeat_interleave", [](const Tensors& t) { return t[0].repeat_interleave(2, 0); }, {{5, 3}});
}

TEST(FlipRollRepeatTest, TrianglesAreDense) {
  for (int64_t diagonal : {-2, 0, 1, 9})
    expect_same_as_dense("tril, triu",
                         [=](const Tensors& t) {
                           return Tensors{t[0].tril(diagonal), t[0].triu(diagonal), t[0].clone().tril_(diagonal),
                                          t[0].clone().triu_(diagonal)};
                         },
                         {{2, 6, 5}}, {.max_combinations = 16});
  const auto lower = [](const Tensors& t) { return Tensors{t[0].tril()}; };
  for (const Placement& placement : {kUneven, kColumns, Placement::partial()})
    EXPECT_EQ(bytes_received(lower, {{9, 4}}, {4}, {{placement}}), 0);
}

TEST(FlipRollRepeatTest, DiagonalsAreDense) {
  for (int64_t offset : {-2, 0, 1, 7}) {
    expect_same_as_dense("diagonal", [=](const Tensors& t) { return t[0].diagonal(offset, 0, 1); }, {{6, 5, 3}},
                         {.max_combinations = 24});
    expect_same_as_dense("diagonal of turned", [=](const Tensors& t) { return t[0].diagonal(offset, -1, 0); },
                         {{4, 2, 5}}, {.max_combinations = 24});
    expect_same_as_dense("diagonal_copy", [=](const Tensors& t) { return at::diagonal_copy(t[0], offset); }, {{6, 5}},
                         {.max_combinations = 12});
  }
  expect_same_as_dense("diag_embed", [](const Tensors& t) { return at::diag_embed(t[0], 1, 0, 2); }, {{4, 3}});
  expect_same_as_dense("diag", [](const Tensors& t) { return Tensors{t[0].diag(), t[0].diag(-1), t[1].diag(1)}; },
                       {{5, 4}, {3}}, {.max_combinations = 20});
}

TEST(FlipRollRepeatTest, TheDiagonalOfShardedRowsAndItsGradientDoNotMove) {
  const auto train = [](const Tensors& t) {
    const at::Tensor leaf = t[0].requires_grad_();
    const at::Tensor diagonal = leaf.diagonal();
    return torch::autograd::grad({diagonal}, {leaf}, {diagonal.detach()});
  };
  for (const Placement& placement : {kUneven, kRows}) EXPECT_EQ(bytes_received(train, {{9, 9}}, {4}, {{placement}}), 0);
  const auto diagonal = [](const Tensors& t) { return Tensors{t[0].diagonal()}; };
  EXPECT_EQ(bytes_received(diagonal, {{9, 9}}, {4}, {{kColumns}}),
            0);  // whose gradient comes by rows, and moves to the leaf's columns
  run_ranks(4, [](World&) {
    const at::Tensor leaf = lay_out(at::rand({9, 9}), make_mesh({4}), {kUneven}).requires_grad_();
    leaf.diagonal().sum().backward();
    EXPECT_EQ(spec_of(leaf.diagonal())->placements()[0], kUneven);
  });
}

TEST(FlipRollRepeatTest, CopiesOfViewsAreDense) {
  expect_same_as_dense("copies",
                       [](const Tensors& t) {
                         return Tensors{at::slice_copy(t[0], 0, 1, 5, 2), at::select_copy(t[0], 1, 2),
                                        at::permute_copy(t[0], {1, 0}),   at::t_copy(t[0]),
                                        at::unsqueeze_copy(t[0], 1),      at::narrow_copy(t[0], 1, 1, 2),
                                        at::expand_copy(t[0], {2, 6, 4}), at::view_copy(t[0], {6, 2, 2})};
                       },
                       {{6, 4}}, {.max_combinations = 20});
  expect_same_as_dense("unbind_copy", [](const Tensors& t) { return at::unbind_copy(t[0], 1); }, {{5, 3}},
                       {.max_combinations = 12});
}

TEST(FlipRollRepeatTest, ComplexNumbersAreTwoRealOnes) {
  const auto both_ways = [](const Tensors& t) {
    const at::Tensor numbers = at::view_as_complex(t[0].contiguous());
    return Tensors{at::view_as_real(numbers.mul(numbers)), at::real(numbers), at::imag(numbers)};
  };
  expect_same_as_dense("complex views", both_ways, {{5, 3, 2}});
  EXPECT_EQ(bytes_received(both_ways, {{9, 3, 2}}, {4}, {{kUneven}}), 0);
}

}  // namespace
}  // namespace shardwise::flip_roll_repeat_test
