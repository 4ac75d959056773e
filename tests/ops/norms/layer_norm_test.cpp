#include "tests/support/dense.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::layer_norm_test {
namespace {

const DenseOptions kClose{.is_exact = false, .max_combinations = 24};

TEST(NormalizationTest, RulesSayWhatIsWhole) {
  EXPECT_EQ(to_string(rule("aten::_softmax")), "pointwise whole(dim)");
  EXPECT_EQ(to_string(rule("aten::_log_softmax_backward_data")), "pointwise linear in the first whole(dim)");
  EXPECT_EQ(to_string(rule("aten::native_layer_norm")), "layer_norm");
}

TEST(NormalizationTest, Softmax) {
  for (const int64_t dim : {0, 1, -1}) {
    expect_same_as_dense("softmax", [dim](const Tensors& t) { return t[0].softmax(dim); }, {{5, 4}}, kClose);
    expect_same_as_dense("log_softmax", [dim](const Tensors& t) { return t[0].log_softmax(dim); }, {{2, 3, 2}}, kClose);
  }
  expect_same_as_dense("softmax of no rows", [](const Tensors& t) { return t[0].softmax(1); }, {{0, 4}}, kClose);
  expect_same_as_dense("softmax of a scalar", [](const Tensors& t) { return t[0].softmax(0); }, {{}}, kClose);
}

TEST(NormalizationTest, LayerNorm) {
  const auto norm = [](const Tensors& t) { return at::layer_norm(t[0], {4}, t[1], t[2]); };
  expect_same_as_dense("layer_norm", norm, {{5, 4}, {4}, {4}}, kClose);
  expect_same_as_dense("layer_norm of no rows", norm, {{0, 4}, {4}, {4}}, kClose);
  expect_same_as_dense(
      "layer_norm of two dims", [](const Tensors& t) { return at::layer_norm(t[0], {3, 4}, t[1], t[2]); },
      {{2, 3, 4}, {3, 4}, {3, 4}}, kClose);
  expect_same_as_dense(
      "layer_norm without weight", [](const Tensors& t) { return at::layer_norm(t[0], {4}); }, {{2, 3, 4}}, kClose);
}

TEST(NormalizationTest, ShardedRowsExchangeStatisticsOnly) {
  const auto norm = [](const Tensors& t) { return at::layer_norm(t[0], {3, 4}, t[1], t[2]); };
  expect_same_as_dense("layer_norm of long rows", norm, {{5, 3, 4}, {3, 4}, {3, 4}}, kClose);
  expect_same_as_dense("layer_norm of one row", norm, {{3, 4}, {3, 4}, {3, 4}}, kClose);
  expect_same_as_dense(
      "layer_norm of long rows alone", [](const Tensors& t) { return at::layer_norm(t[0], {7}); }, {{2, 3, 7}}, kClose);
  const auto forward = [](const Tensors& t) { return Tensors{at::layer_norm(t[0], {64}, t[1], t[2])}; };
  const Placement columns = Placement::shard(1), first = Placement::shard(0);
  // Mean and variance of 4 rows of float64, all-reduced over two ranks.
  EXPECT_EQ(bytes_received(forward, {{4, 64}, {64}, {64}}, {2}, {{columns}, {first}, {first}}), 2 * 4 * 8);
}

TEST(NormalizationTest, SecondDerivativesAreDense) {
  const auto second = [](const Tensors& t) {
    const at::Tensor result = at::layer_norm(t[0], {6}, t[1], t[2]);
    const Tensors first = torch::autograd::grad({result.mul(result).mul(result).sum()}, {t[0], t[1], t[2]}, {}, true,
                                                /*create_graph=*/true);
    return at::cat({first[0].reshape({-1}), first[1], first[2]});
  };
  const DenseOptions small{.meshes = {{3}, {2, 2}}, .low = -16, .high = 16, .is_exact = false, .max_combinations = 16};
  expect_same_as_dense("layer_norm", second, {{3, 6}, {6}, {6}}, small);
}

TEST(NormalizationTest, RmsNorm) {
  expect_same_as_dense(
      "rms_norm", [](const Tensors& t) { return at::rms_norm(t[0], {4}, t[1], 1e-6); }, {{5, 4}, {4}}, kClose);
  expect_same_as_dense(
      "rms_norm of two dims alone", [](const Tensors& t) { return at::rms_norm(t[0], {3, 2}); }, {{4, 3, 2}}, kClose);
  const auto forward = [](const Tensors& t) { return Tensors{at::rms_norm(t[0], {64}, t[1])}; };
  EXPECT_EQ(bytes_received(forward, {{4, 64}, {64}}, {2}, {{Placement::shard(1)}, {Placement::shard(0)}}), 4 * 8);
}

TEST(NormalizationTest, ShardedBatchesSendNothing) {
  const auto norm = [](const Tensors& t) { return Tensors{at::layer_norm(t[0], {4}, t[1], t[2])}; };
  const Placement whole = Placement::replicate();
  EXPECT_EQ(bytes_received(norm, {{5, 4}, {4}, {4}}, {3}, {{Placement::shard(0)}, {whole}, {whole}}), 0);
  const auto softmax = [](const Tensors& t) { return Tensors{t[0].softmax(1)}; };
  EXPECT_EQ(bytes_received(softmax, {{5, 4}}, {3}, {{Placement::shard(0, {0, 1, 4})}}), 0);
}

}  // namespace
}  // namespace shardwise::layer_norm_test
