#include "tests/support/dense.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace shardwise::softmax_test {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
const DenseOptions kClose{.is_exact = false, .max_combinations = 25};

TEST(SoftmaxTest, EveryDimIsDense) {
  for (int64_t dim : {0, 1, -1}) {
    expect_same_as_dense("softmax", [=](const Tensors& t) { return at::softmax(t[0], dim); }, {{5, 4}}, kClose);
    expect_same_as_dense("log_softmax", [=](const Tensors& t) { return at::log_softmax(t[0], dim); }, {{5, 4}}, kClose);
  }
  expect_same_as_dense("of a middle dim", [](const Tensors& t) { return at::softmax(t[0], 1); }, {{2, 5, 3}}, kClose);
  expect_same_as_dense("of a number", [](const Tensors& t) { return at::softmax(t[0], 0); }, {{}}, kClose);
  expect_same_as_dense("of nothing", [](const Tensors& t) { return at::log_softmax(t[0], 1); }, {{5, 0}}, kClose);
  expect_same_as_dense(
      "of fewer than ranks", [](const Tensors& t) { return at::log_softmax(t[0], 0); }, {{2, 3}}, kClose);
}

TEST(SoftmaxTest, OtherDtypesAreDense) {
  const auto wide = [](const Tensors& t) { return at::softmax(t[0].to(at::kBFloat16), 0, at::kFloat); };
  expect_same_as_dense("to float", wide, {{5, 4}}, {.is_exact = false, .with_partial = false, .with_grad = false});
  expect_same_as_dense("of integers", [](const Tensors& t) { return at::softmax(t[0], 0, at::kDouble); }, {{5, 4}},
                       {.dtype = at::kLong, .is_exact = false});
}

TEST(SoftmaxTest, SecondOrderIsDense) {
  const auto second = [](const Tensors& t) {
    const at::Tensor result = at::softmax(t[0], 0) * t[1];
    return torch::autograd::grad({result}, {t[0]}, {at::ones_like(result)}, true, true)[0];
  };
  expect_same_as_dense("second order", second, {{5, 2}, {5, 2}}, kClose);
}

TEST(SoftmaxTest, MinusInfinitiesAreDense) {
  const auto masked = [](const Tensors& t) { return t[0].masked_fill(t[0].detach().lt(0), kMinusInfinity); };
  expect_same_as_dense(
      "safe softmax", [&](const Tensors& t) { return at::_safe_softmax(masked(t), 0); }, {{2, 6}}, kClose);
  expect_same_as_dense("softmax", [&](const Tensors& t) { return at::softmax(masked(t), 0); }, {{2, 6}}, kClose);
  expect_same_as_dense("logsumexp", [&](const Tensors& t) { return at::logsumexp(masked(t), {0}); }, {{2, 6}}, kClose);
}

TEST(SoftmaxTest, LogsumexpIsDense) {
  expect_same_as_dense("of rows", [](const Tensors& t) { return at::logsumexp(t[0], {0}, true); }, {{5, 4}}, kClose);
  expect_same_as_dense(
      "of two dims", [](const Tensors& t) { return at::logsumexp(t[0], at::IntArrayRef{0, 2}); }, {{3, 2, 4}}, kClose);
}

// 8 x 600 numbers are 38,400 bytes; per row a maximum and a sum travel.
TEST(SoftmaxTest, ShardedDimsAreNotGathered) {
  const auto both_ways = [](const Tensors& t) {
    const at::Tensor input = t[0].detach().requires_grad_();
    const at::Tensor result = at::softmax(input, 1);
    return torch::autograd::grad({result}, {input}, {at::ones_like(result)});
  };
  const int64_t bytes = bytes_received(both_ways, {{8, 600}}, {3}, {{Placement::shard(1)}});
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, 3 * 8 * 8 * 2);
  EXPECT_EQ(bytes_received(both_ways, {{8, 600}}, {3}, {{Placement::shard(0)}}), 0);
}

}  // namespace
}  // namespace shardwise::softmax_test
