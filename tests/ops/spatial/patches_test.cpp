// Shuffled channels and windows: values and gradients against dense ones; what is sharded stays so.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::patches_test {
namespace {

const DenseOptions kFew{.meshes = {{3}, {2, 2}}, .max_combinations = 24};

TEST(PatchesTest, RulesSayTheirFactors) {
  EXPECT_EQ(to_string(rule("aten::pixel_shuffle")), "…(crr)hw->…c(hr)(wr) passing");
  EXPECT_EQ(to_string(rule("aten::im2col")), "…chw->…(ck)l linear");
}

TEST(PatchesTest, ShufflesAreDense) {
  expect_same_as_dense(
      "pixel_shuffle", [](const Tensors& t) { return at::pixel_shuffle(t[0], 2); }, {{2, 12, 2, 3}}, kFew);
  expect_same_as_dense(
      "pixel_unshuffle", [](const Tensors& t) { return at::pixel_unshuffle(t[0], 2); }, {{3, 6, 4}}, kFew);
  expect_same_as_dense(
      "channel_shuffle", [](const Tensors& t) { return at::channel_shuffle(t[0], 2); }, {{3, 4, 2, 2}}, kFew);
}

TEST(PatchesTest, WindowsAreDense) {
  const auto windows = [](const Tensors& t) { return at::im2col(t[0], {2, 2}, {1, 1}, {1, 0}, {2, 1}); };
  expect_same_as_dense("im2col", windows, {{3, 2, 4, 3}}, kFew);
  expect_same_as_dense("im2col of one image", windows, {{3, 4, 3}}, kFew);
  const auto sums = [](const Tensors& t) { return at::col2im(t[0], {4, 3}, {2, 2}, {1, 1}, {1, 0}, {2, 1}); };
  expect_same_as_dense("col2im", sums, {{3, 8, 6}}, kFew);
  for (const int64_t dim : {0, -1})
    expect_same_as_dense("unfold", [dim](const Tensors& t) { return t[0].unfold(dim, 2, 1); }, {{4, 5}}, kFew);
  expect_same_as_dense("unfold of a scalar", [](const Tensors& t) { return t[0].unfold(0, 1, 1); }, {{}}, kFew);
}

TEST(PatchesTest, ShardsDoNotMove) {
  const auto train = [](const Tensors& t) {
    const at::Tensor input = t[0].detach().requires_grad_();
    const at::Tensor output = at::im2col(at::pixel_shuffle(input, 2), {2, 2}, {1, 1}, {0, 0}, {1, 1}).unfold(2, 2, 2);
    return torch::autograd::grad({output}, {input}, {at::ones_like(output)});
  };
  EXPECT_EQ(bytes_received(train, {{2, 12, 2, 2}}, {2}, {{Placement::shard(0)}}), 0);
  EXPECT_EQ(bytes_received(train, {{2, 12, 2, 2}}, {3}, {{Placement::shard(1)}}), 0);
  const auto shuffle = [](const Tensors& t) { return Tensors{at::pixel_shuffle(t[0], 2)}; };
  EXPECT_EQ(bytes_received(shuffle, {{2, 4, 3, 4}}, {2, 2}, {{Placement::shard(2), Placement::shard(3)}}), 0);
}

}  // namespace
}  // namespace shardwise::patches_test
