// Batch and instance norm: values, gradients and running statistics against dense ones of the whole batch.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::batch_norm_test {
namespace {

const DenseOptions kClose{.low = -32, .high = 32, .is_exact = false, .max_combinations = 20};

/// Input, weight, bias, running mean and variance; the results and what the running statistics become.
Tensors normalise(const Tensors& t, bool training) {
  const at::Tensor mean = t[3].detach().clone(), variance = t[4].detach().square();
  const at::Tensor result = at::batch_norm(t[0], t[1], t[2], mean, variance, training, 0.25, 1e-3, false);
  return {result, mean, variance};
}

TEST(BatchNormTest, TrainingIsDense) {
  const auto norm = [](const Tensors& t) { return normalise(t, true); };
  expect_same_as_dense("batch_norm of images", norm, {{5, 3, 2, 3}, {3}, {3}, {3}, {3}}, kClose);
  expect_same_as_dense("batch_norm of rows", norm, {{7, 4}, {4}, {4}, {4}, {4}}, kClose);
  expect_same_as_dense("batch_norm of a batch smaller than the mesh", norm, {{1, 2, 5}, {2}, {2}, {2}, {2}}, kClose);
  const auto bare = [](const Tensors& t) { return at::batch_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-3, false); };
  expect_same_as_dense("batch_norm alone", bare, {{5, 3, 2}}, kClose);
}

TEST(BatchNormTest, EvaluationIsDense) {
  const auto norm = [](const Tensors& t) { return normalise(t, false); };
  expect_same_as_dense("batch_norm", norm, {{5, 3, 2, 3}, {3}, {3}, {3}, {3}}, kClose);
  const auto bare = [](const Tensors& t) {
    return at::batch_norm(t[0], {}, {}, t[1].detach(), t[2].detach().square(), false, 0.1, 1e-3, false);
  };
  expect_same_as_dense("batch_norm without weight", bare, {{5, 3}, {3}, {3}}, kClose);
}

TEST(BatchNormTest, OtherNamesAreDense) {
  const auto legit = [](const Tensors& t) {
    const auto [result, mean, invstd] = at::_native_batch_norm_legit(t[0], t[1], t[2], true, 0.1, 1e-3);
    return Tensors{result, mean, invstd};
  };
  const DenseOptions no_grad{
      .meshes = {{3}}, .low = -32, .high = 32, .is_exact = false, .with_grad = false, .max_combinations = 12};
  expect_same_as_dense("_native_batch_norm_legit", legit, {{5, 3, 2}, {3}, {3}}, no_grad);
  const auto updating = [](const Tensors& t) {
    at::Tensor mean = t[3].clone(), variance = t[4].square();
    const auto [result, saved_mean, saved_invstd, reserve] =
        at::_batch_norm_with_update(t[0], t[1], t[2], mean, variance, 0.1, 1e-3);
    return Tensors{result, saved_mean, saved_invstd, mean, variance};
  };
  expect_same_as_dense("_batch_norm_with_update", updating, {{5, 3, 2}, {3}, {3}, {3}, {3}}, no_grad);
}

TEST(BatchNormTest, HalfPrecisionSumsInSingle) {
  const auto norm = [](const Tensors& t) {
    return at::batch_norm(t[0].to(at::kBFloat16), t[1], t[2], {}, {}, true, 0.1, 1e-3, false);
  };
  const DenseOptions half{.meshes = {{3}},
                          .low = -32,
                          .high = 32,
                          .dtype = at::kFloat,
                          .is_exact = false,
                          .with_grad = false,
                          .max_combinations = 8};
  expect_same_as_dense(
      "batch_norm", [&](const Tensors& t) { return norm(t).to(at::kFloat).mul(8).round().div(8); },
      {{5, 3, 2}, {3}, {3}}, half);
}

TEST(BatchNormTest, SecondDerivativesAreDense) {
  for (const bool training : {true, false}) {
    const auto second = [training](const Tensors& t) {
      const at::Tensor result = normalise(t, training)[0];
      const Tensors first = torch::autograd::grad({result.mul(result).mul(result).sum()}, {t[0], t[1], t[2]}, {}, true,
                                                  /*create_graph=*/true);
      return at::cat({first[0].reshape({-1}), first[1], first[2]});
    };
    const DenseOptions small{.meshes = {{3}}, .low = -16, .high = 16, .is_exact = false, .max_combinations = 16};
    expect_same_as_dense("batch_norm", second, {{4, 2, 3}, {2}, {2}, {2}, {2}}, small);
  }
}

TEST(BatchNormTest, InstanceNormIsDense) {
  const auto norm = [](bool use_input_stats) {
    return [use_input_stats](const Tensors& t) {
      const at::Tensor mean = t[3].detach().clone(), variance = t[4].detach().square();
      const at::Tensor result = at::instance_norm(t[0], t[1], t[2], mean, variance, use_input_stats, 0.25, 1e-3, false);
      return Tensors{result, mean, variance};
    };
  };
  const std::vector<Dims> sizes{{4, 3, 2, 3}, {3}, {3}, {3}, {3}};
  expect_same_as_dense("instance_norm", norm(true), sizes, kClose);
  expect_same_as_dense("instance_norm of the running statistics", norm(false), sizes, kClose);
  const auto bare = [](const Tensors& t) { return at::instance_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-3, false); };
  expect_same_as_dense("instance_norm alone", bare, {{3, 2, 5}}, kClose);
}

TEST(BatchNormTest, OnlyStatisticsTravel) {
  const auto train = [](const Tensors& t) {
    const Tensors inputs{t[0].detach().requires_grad_(), t[1].detach().requires_grad_(),
                         t[2].detach().requires_grad_()};
    const at::Tensor output = at::batch_norm(inputs[0], inputs[1], inputs[2], {}, {}, true, 0.1, 1e-3, false);
    return torch::autograd::grad({output}, inputs, {at::ones_like(output)});
  };
  const std::vector<Dims> sizes{{8, 4, 2, 2}, {4}, {4}};
  const std::vector<Placement> all{Placement::replicate()}, first{Placement::shard(0)}, second{Placement::shard(1)};
  EXPECT_EQ(bytes_received(train, sizes, {2}, {second, first, first}), 0);
  // Mean and variance, then the sums of the gradient and of its product: 4 channels of 8 bytes each, once there and once back.
  EXPECT_EQ(bytes_received(train, sizes, {2}, {first, all, all}), 4 * 4 * 8);
  const auto instances = [](const Tensors& t) {
    return Tensors{at::instance_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-3, false)};
  };
  EXPECT_EQ(bytes_received(instances, sizes, {2}, {first, all, all}), 0);
  EXPECT_EQ(bytes_received(instances, sizes, {2}, {second, first, first}), 0);
}

}  // namespace
}  // namespace shardwise::batch_norm_test
