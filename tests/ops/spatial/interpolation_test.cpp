// Upsampling and sampling: values and gradients against dense ones; batch and channels stay sharded.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::interpolation_test {
namespace {

const DenseOptions kClose{.meshes = {{3}, {2, 2}}, .is_exact = false, .max_combinations = 20};

/// The gradient of the sum of the squared gradient.
Tensors second_derivative(const std::function<at::Tensor(const at::Tensor&)>& compute, const at::Tensor& input) {
  const at::Tensor result = compute(input);
  return torch::autograd::grad({result.mul(result).sum()}, {input}, {}, true, /*create_graph=*/true);
}

TEST(InterpolationTest, RulesSayTheirFactors) {
  EXPECT_EQ(to_string(rule("aten::upsample_bicubic2d")), "planes linear");
  EXPECT_EQ(to_string(rule("aten::upsample_bicubic2d_backward")), "planes linear sizes(input_size)");
  EXPECT_EQ(to_string(rule("aten::grid_sampler_2d")), "nc__,nhw_->nchw linear in the first");
}

TEST(InterpolationTest, UpsamplingIsDense) {
  const Dims line{4, 2, 3}, image{3, 2, 3, 4}, volume{2, 3, 2, 3, 2};
  expect_same_as_dense("nearest", [](const Tensors& t) { return at::upsample_nearest1d(t[0], 5); }, {line}, kClose);
  expect_same_as_dense(
      "linear", [](const Tensors& t) { return at::upsample_linear1d(t[0], 5, false); }, {line}, kClose);
  expect_same_as_dense(
      "nearest", [](const Tensors& t) { return at::upsample_nearest2d(t[0], {5, 6}); }, {image}, kClose);
  expect_same_as_dense(
      "bilinear", [](const Tensors& t) { return at::upsample_bilinear2d(t[0], {5, 6}, true); }, {image}, kClose);
  expect_same_as_dense(
      "bicubic", [](const Tensors& t) { return at::upsample_bicubic2d(t[0], {2, 6}, false); }, {image}, kClose);
  expect_same_as_dense(
      "antialiased", [](const Tensors& t) { return at::_upsample_bilinear2d_aa(t[0], {2, 6}, false); }, {image},
      kClose);
  expect_same_as_dense(
      "trilinear", [](const Tensors& t) { return at::upsample_trilinear3d(t[0], {3, 4, 3}, false); }, {volume}, kClose);
}

TEST(InterpolationTest, SamplingIsDense) {
  const auto sample = [](const Tensors& t) { return at::grid_sampler(t[0], t[1].tanh(), 0, 0, false); };
  expect_same_as_dense("grid_sampler_2d", sample, {{3, 2, 4, 3}, {3, 3, 2, 2}}, kClose);
  expect_same_as_dense("grid_sampler_3d", sample, {{2, 3, 2, 4, 3}, {2, 2, 3, 2, 3}}, kClose);
  expect_same_as_dense(
      "bicubic", [](const Tensors& t) { return at::grid_sampler(t[0], t[1].tanh(), 2, 1, true); },
      {{3, 2, 4, 3}, {3, 3, 2, 2}}, kClose);
  expect_same_as_dense(
      "affine_grid", [](const Tensors& t) { return at::affine_grid_generator(t[0], {4, 2, 3, 2}, false); }, {{4, 2, 3}},
      kClose);
}

TEST(InterpolationTest, SecondDerivativesAreDense) {
  const auto grown = [](const at::Tensor& t) { return at::upsample_bilinear2d(t, {5, 6}, false); };
  expect_same_as_dense(
      "bilinear", [&](const Tensors& t) { return second_derivative(grown, t[0]); }, {{3, 2, 3, 4}}, kClose);
  const auto grid = [](const at::Tensor& t) { return at::affine_grid_generator(t, {4, 2, 3, 2}, false); };
  expect_same_as_dense(
      "affine_grid", [&](const Tensors& t) { return second_derivative(grid, t[0]); }, {{4, 2, 3}}, kClose);
}

TEST(InterpolationTest, ShardedBatchesSendNothing) {
  const auto train = [](const Tensors& t) {
    const at::Tensor input = t[0].detach().requires_grad_();
    const at::Tensor output = at::upsample_bilinear2d(input, {6, 5}, false);
    return torch::autograd::grad({output}, {input}, {at::ones_like(output)});
  };
  EXPECT_EQ(bytes_received(train, {{3, 4, 3, 2}}, {2, 2}, {{Placement::shard(0), Placement::shard(1)}}), 0);
  const auto sample = [](const Tensors& t) { return Tensors{at::grid_sampler(t[0], t[1], 0, 0, false)}; };
  EXPECT_EQ(
      bytes_received(sample, {{3, 2, 4, 3}, {3, 3, 2, 2}}, {3}, {{Placement::replicate()}, {Placement::shard(1)}}), 0);
}

}  // namespace
}  // namespace shardwise::interpolation_test
