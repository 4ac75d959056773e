// Padding: values and gradients against dense ones; a sharded dim does not move.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::padding_test {
namespace {

/// The gradient of the sum of the squared gradient.
Tensors second_derivative(const std::function<at::Tensor(const at::Tensor&)>& compute, const at::Tensor& input) {
  const at::Tensor result = compute(input);
  return torch::autograd::grad({result.mul(result).sum()}, {input}, {}, true, /*create_graph=*/true);
}

TEST(PaddingTest, ConstantsAreDense) {
  const auto padded = [](std::vector<int64_t> pads, double value) {
    return [pads, value](const Tensors& t) { return at::constant_pad_nd(t[0], pads, value); };
  };
  for (const double value : {0., 2.5}) {
    expect_same_as_dense("a border", padded({1, 2, 3, 1}, value), {{5, 4}});
    expect_same_as_dense("a border of the last dim", padded({2, 0}, value), {{2, 4, 3}});
    expect_same_as_dense("less on one side", padded({-2, 1}, value), {{7}});
    expect_same_as_dense("less on both sides", padded({-1, -3, 0, 2}, value), {{3, 6}});
    expect_same_as_dense("only a border", padded({2, 3, 1, 1}, value), {{3, 0}});
    expect_same_as_dense("cropped to the padding", padded({-4, 2, 1, 0}, value), {{3, 4}});
  }
}

TEST(PaddingTest, MirrorsAndEdgesAreDense) {
  const DenseOptions few{.meshes = {{3}, {2, 2}}, .max_combinations = 20};
  expect_same_as_dense(
      "reflection", [](const Tensors& t) { return at::reflection_pad2d(t[0], {1, 2, 2, 0}); }, {{3, 2, 4, 3}}, few);
  expect_same_as_dense(
      "reflection", [](const Tensors& t) { return at::reflection_pad1d(t[0], {1, 2}); }, {{4, 3}}, few);
  expect_same_as_dense("edges", [](const Tensors& t) { return at::replication_pad1d(t[0], {1, 2}); }, {{3, 2, 4}}, few);
  expect_same_as_dense(
      "edges", [](const Tensors& t) { return at::replication_pad3d(t[0], {1, 0, 0, 2, 1, 1}); }, {{2, 3, 2, 3, 2}},
      few);
}

TEST(PaddingTest, SecondDerivativesAreDense) {
  const DenseOptions few{.meshes = {{3}, {2, 2}}, .is_exact = false, .max_combinations = 20};
  const auto bordered = [](const at::Tensor& t) { return at::constant_pad_nd(t, {1, -1, 2, 0}, 3); };
  expect_same_as_dense("a border", [&](const Tensors& t) { return second_derivative(bordered, t[0]); }, {{5, 4}}, few);
  const auto mirrored = [](const at::Tensor& t) { return at::reflection_pad1d(t, {1, 2}); };
  expect_same_as_dense(
      "reflection", [&](const Tensors& t) { return second_derivative(mirrored, t[0]); }, {{3, 2, 4}}, few);
}

TEST(PaddingTest, ShardsDoNotMove) {
  const auto train = [](const Tensors& t) {
    const at::Tensor input = t[0].detach().requires_grad_();
    const at::Tensor output = at::constant_pad_nd(input, {1, 2, 2, 1}, 3);
    return torch::autograd::grad({output}, {input}, {at::ones_like(output)});
  };
  EXPECT_EQ(bytes_received(train, {{5, 4}}, {3}, {{Placement::shard(0, {0, 1, 4})}}), 0);
  EXPECT_EQ(bytes_received(train, {{5, 4}}, {2, 2}, {{Placement::shard(0), Placement::shard(1)}}), 0);
  const auto mirror = [](const Tensors& t) { return Tensors{at::reflection_pad1d(t[0], {1, 2})}; };
  EXPECT_EQ(bytes_received(mirror, {{3, 5, 4}}, {2, 2}, {{Placement::shard(0), Placement::shard(1)}}), 0);
}

}  // namespace
}  // namespace shardwise::padding_test
