// Pooling and its reverse: values and gradients against dense ones; sharded batches and channels send nothing.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::pooling_test {
namespace {

const DenseOptions kClose{.meshes = {{3}, {2, 2}}, .is_exact = false, .max_combinations = 20};
const Dims kImage{4, 3, 6, 5}, kVolume{2, 3, 4, 5, 4};

/// The gradient of the sum of the squared gradient.
Tensors second_derivative(const std::function<at::Tensor(const at::Tensor&)>& compute, const at::Tensor& input) {
  const at::Tensor result = compute(input);
  return torch::autograd::grad({result.mul(result).sum()}, {input}, {}, true, /*create_graph=*/true);
}

TEST(PoolingTest, RulesSayWhatIsWhole) {
  EXPECT_EQ(to_string(rule("aten::max_pool2d_with_indices")), "planes of 2 dims");
  EXPECT_EQ(to_string(rule("aten::avg_pool3d_backward")), "planes of 3 dims linear in the first");
}

TEST(PoolingTest, MaximaAreDense) {
  const auto indexed = [](const Tensors& t) {
    const auto [values, indices] = at::max_pool2d_with_indices(t[0], {3, 2}, {2, 1}, {1, 1});
    return Tensors{values, indices};
  };
  expect_same_as_dense("max_pool2d", indexed, {kImage}, kClose);
  expect_same_as_dense("max_pool2d of one image", indexed, {{3, 6, 5}}, kClose);
  const auto deep = [](const Tensors& t) {
    const auto [values, indices] = at::max_pool3d_with_indices(t[0], {2, 2, 2}, {1, 1, 1});
    return Tensors{values, indices};
  };
  expect_same_as_dense("max_pool3d", deep, {kVolume}, kClose);
  expect_same_as_dense("max_pool1d", [](const Tensors& t) { return at::max_pool1d(t[0], 2); }, {{4, 3, 5}}, kClose);
  expect_same_as_dense(
      "max_pool1d without gradients", [](const Tensors& t) { return at::max_pool1d(t[0].detach(), 2); }, {{4, 3, 5}},
      kClose);
  expect_same_as_dense(
      "adaptive_max_pool2d", [](const Tensors& t) { return std::get<0>(at::adaptive_max_pool2d(t[0], {2, 3})); },
      {kImage}, kClose);
  expect_same_as_dense(
      "adaptive_max_pool3d", [](const Tensors& t) { return std::get<0>(at::adaptive_max_pool3d(t[0], {2, 3, 1})); },
      {kVolume}, kClose);
}

TEST(PoolingTest, MeansAreDense) {
  expect_same_as_dense(
      "avg_pool2d", [](const Tensors& t) { return at::avg_pool2d(t[0], {2, 3}, {2, 1}, {1, 1}); }, {kImage}, kClose);
  expect_same_as_dense(
      "avg_pool3d", [](const Tensors& t) { return at::avg_pool3d(t[0], {2, 3, 2}); }, {kVolume}, kClose);
  expect_same_as_dense(
      "adaptive_avg_pool2d", [](const Tensors& t) { return at::adaptive_avg_pool2d(t[0], {2, 3}); }, {kImage}, kClose);
  expect_same_as_dense(
      "adaptive_avg_pool3d", [](const Tensors& t) { return at::adaptive_avg_pool3d(t[0], {2, 3, 1}); }, {kVolume},
      kClose);
}

TEST(PoolingTest, FractionsAndReversesAreDense) {
  const auto fractional = [](const Tensors& t) {
    return std::get<0>(at::fractional_max_pool2d(t[0], {2, 2}, {3, 2}, t[1].detach().sigmoid()));
  };
  expect_same_as_dense("fractional_max_pool2d", fractional, {kImage, {4, 3, 2}}, kClose);
  expect_same_as_dense("fractional_max_pool2d of one image", fractional, {{3, 6, 5}, {1, 3, 2}}, kClose);
  const auto there_and_back = [](const Tensors& t) {
    const auto [values, indices] = at::max_pool2d_with_indices(t[0].detach(), {2, 2});
    return at::max_unpool2d(t[1], indices, {6, 5});
  };
  expect_same_as_dense("max_unpool2d", there_and_back, {kImage, {4, 3, 3, 2}}, kClose);
}

TEST(PoolingTest, SecondDerivativesAreDense) {
  const auto means = [](const at::Tensor& t) { return at::avg_pool2d(t, {2, 2}, {1, 1}); };
  expect_same_as_dense(
      "avg_pool2d", [&](const Tensors& t) { return second_derivative(means, t[0]); }, {kImage}, kClose);
  const auto maxima = [](const at::Tensor& t) { return at::max_pool2d(t, {2, 2}, {1, 1}); };
  expect_same_as_dense(
      "max_pool2d", [&](const Tensors& t) { return second_derivative(maxima, t[0]); }, {kImage}, kClose);
  const auto adaptive = [](const at::Tensor& t) { return at::adaptive_avg_pool2d(t, {2, 3}); };
  expect_same_as_dense(
      "adaptive_avg_pool2d", [&](const Tensors& t) { return second_derivative(adaptive, t[0]); }, {kImage}, kClose);
}

TEST(PoolingTest, ShardedBatchesAndChannelsSendNothing) {
  const auto train = [](const Tensors& t) {
    const at::Tensor input = t[0].detach().requires_grad_();
    const at::Tensor output = at::avg_pool2d(at::max_pool2d(input, 2), 2);
    return torch::autograd::grad({output}, {input}, {at::ones_like(output)});
  };
  EXPECT_EQ(bytes_received(train, {{4, 3, 6, 4}}, {2, 2}, {{Placement::shard(0), Placement::shard(1)}}), 0);
  EXPECT_EQ(bytes_received(train, {{4, 3, 6, 4}}, {3}, {{Placement::shard(1, {0, 1, 2})}}), 0);
}

}  // namespace
}  // namespace shardwise::pooling_test
