// Convolutions: values and gradients against dense ones; sharded batches send nothing, sharded images halos.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::convolution_test {
namespace {

const DenseOptions kClose{.is_exact = false, .max_combinations = 20};
const DenseOptions kFew{.meshes = {{3}, {2, 2}}, .is_exact = false, .max_combinations = 12};

TEST(ConvolutionTest, RulesSayTheirFactors) {
  EXPECT_EQ(to_string(rule("shardwise::convolution")), "ni…,oi…,o->no… {i: sum} multilinear");
  EXPECT_EQ(to_string(rule("shardwise::convolution_backward")), "no…,ni…,oi…->ni…,oi… linear in the first");
}

TEST(ConvolutionTest, PlainIsDense) {
  const auto conv = [](const Tensors& t) { return at::conv2d(t[0], t[1], t[2], 1, at::IntArrayRef({1, 1})); };
  expect_same_as_dense("conv2d", conv, {{5, 3, 4, 5}, {2, 3, 3, 2}, {2}}, kClose);
  expect_same_as_dense("conv2d of no batch", conv, {{0, 3, 4, 5}, {2, 3, 3, 2}, {2}}, kFew);
  expect_same_as_dense("conv2d of an unbatched image", conv, {{3, 4, 5}, {2, 3, 3, 2}, {2}}, kFew);
  expect_same_as_dense(
      "conv1d, as long as before",
      [](const Tensors& t) { return at::conv1d(t[0], t[1], {}, 1, c10::string_view("same"), 2); },
      {{2, 3, 7}, {4, 3, 2}}, kFew);
  expect_same_as_dense(
      "conv3d", [](const Tensors& t) { return at::conv3d(t[0], t[1], t[2], 2); },
      {{2, 2, 3, 4, 3}, {3, 2, 2, 2, 2}, {3}}, kFew);
}

TEST(ConvolutionTest, GroupsAreDense) {
  const auto conv = [](const Tensors& t) {
    return at::conv2d(t[0], t[1], t[2], 1, at::IntArrayRef({0, 0}), 1, /*groups=*/3);
  };
  expect_same_as_dense("three groups", conv, {{2, 6, 3, 4}, {6, 2, 2, 2}, {6}}, kClose);
  expect_same_as_dense("a group per channel", conv, {{2, 3, 3, 4}, {6, 1, 2, 2}, {6}}, kClose);
}

TEST(ConvolutionTest, TransposedIsDense) {
  const auto conv = [](const Tensors& t) { return at::conv_transpose2d(t[0], t[1], t[2], 2, 1, 1); };
  expect_same_as_dense("conv_transpose2d", conv, {{3, 3, 4, 3}, {3, 2, 2, 3}, {2}}, kClose);
  const auto grouped = [](const Tensors& t) { return at::conv_transpose1d(t[0], t[1], t[2], 1, 0, 0, /*groups=*/2); };
  expect_same_as_dense("conv_transpose1d in two groups", grouped, {{3, 4, 3}, {4, 3, 2}, {6}}, kClose);
}

TEST(ConvolutionTest, SecondDerivativesAreDense) {
  const auto second_of = [](int64_t groups) {
    return [groups](const Tensors& t) {
      const at::Tensor result = at::conv2d(t[0], t[1], t[2], 1, at::IntArrayRef({0, 0}), 1, groups);
      const Tensors first =
          torch::autograd::grad({result.mul(result).sum()}, {t[0], t[1], t[2]}, {}, true, /*create_graph=*/true);
      return at::cat({first[0].reshape({-1}), first[1].reshape({-1}), first[2]});
    };
  };
  const DenseOptions small{.meshes = {{3}}, .low = -8, .high = 8, .is_exact = false, .max_combinations = 12};
  expect_same_as_dense("conv2d", second_of(1), {{2, 3, 3, 3}, {4, 3, 2, 2}, {4}}, small);
  expect_same_as_dense("conv2d in groups", second_of(2), {{2, 4, 3, 3}, {2, 2, 2, 2}, {2}}, small);
}

TEST(ConvolutionTest, ShardedBatchesAndChannelsSendNothing) {
  const auto train = [](const Tensors& t) {
    const Tensors inputs{t[0].detach().requires_grad_(), t[1].detach().requires_grad_(),
                         t[2].detach().requires_grad_()};
    const at::Tensor output = at::conv2d(inputs[0], inputs[1], inputs[2]);
    return torch::autograd::grad({output}, inputs, {at::ones_like(output)});
  };
  const std::vector<Dims> sizes{{5, 3, 4, 4}, {6, 3, 2, 2}, {6}};
  const std::vector<Placement> all{Placement::replicate()}, first{Placement::shard(0)}, second{Placement::shard(1)};
  EXPECT_EQ(bytes_received(train, sizes, {3}, {first, all, all}), 0);
  EXPECT_EQ(bytes_received(train, sizes, {3}, {{Placement::shard(0, {0, 1, 4})}, all, all}), 0);
  EXPECT_EQ(bytes_received(train, sizes, {3}, {all, first, first}), 0);
  EXPECT_EQ(bytes_received(train, sizes, {2, 2}, {{first[0], all[0]}, {all[0], first[0]}, {all[0], first[0]}}), 0);
  const auto forward = [](const Tensors& t) { return Tensors{at::conv2d(t[0], t[1], t[2])}; };
  EXPECT_EQ(bytes_received(forward, sizes, {3}, {second, second, all}), 0);
  const auto by_channel = [](const Tensors& t) {
    return Tensors{at::conv2d(t[0], t[1], t[2], 1, at::IntArrayRef({0, 0}), 1, 3)};
  };
  EXPECT_EQ(bytes_received(by_channel, {{2, 3, 4, 4}, {6, 1, 2, 2}, {6}}, {3}, {second, first, first}), 0);
}

TEST(ConvolutionTest, ShardedImagesAreDense) {
  const auto conv = [](int64_t stride, int64_t padding, int64_t dilation) {
    return [=](const Tensors& t) {
      return at::conv2d(t[0], t[1], t[2], stride, at::IntArrayRef({padding, padding}), dilation);
    };
  };
  const DenseOptions many{.is_exact = false, .max_combinations = 80};
  expect_same_as_dense("a border on each side", conv(1, 1, 1), {{2, 2, 7, 5}, {3, 2, 3, 3}, {3}}, many);
  expect_same_as_dense("no border", conv(1, 0, 1), {{2, 2, 4, 6}, {3, 2, 2, 3}, {3}}, kClose);
  expect_same_as_dense("every second row", conv(2, 1, 1), {{2, 1, 7, 6}, {2, 1, 3, 2}, {2}}, kClose);
  expect_same_as_dense("rows far apart", conv(1, 2, 2), {{1, 2, 6, 5}, {2, 2, 3, 2}, {2}}, kClose);
  expect_same_as_dense("more border than image", conv(1, 3, 1), {{1, 2, 2, 3}, {2, 2, 2, 2}, {2}}, kClose);
  expect_same_as_dense("strides over windows", conv(3, 0, 1), {{1, 2, 8, 7}, {2, 2, 2, 2}, {2}}, kClose);
  const auto grouped = [](const Tensors& t) { return at::conv1d(t[0], t[1], {}, 1, at::IntArrayRef({1}), 1, 2); };
  expect_same_as_dense("a line in groups", grouped, {{2, 4, 9}, {4, 2, 3}}, kClose);
}

TEST(ConvolutionTest, ShardedImagesSendTheirHalos) {
  const auto forward = [](const Tensors& t) { return Tensors{at::conv2d(t[0], t[1], {}, 1, at::IntArrayRef({1, 1}))}; };
  const std::vector<Dims> sizes{{2, 3, 8, 4}, {5, 3, 3, 3}};
  const std::vector<Placement> all{Placement::replicate()};
  const int64_t row = 2 * 3 * 4 * 8;
  EXPECT_EQ(bytes_received(forward, sizes, {2}, {{Placement::shard(2)}, all}), row);
  EXPECT_EQ(bytes_received(forward, sizes, {3}, {{Placement::shard(2, {3, 2, 3})}, all}), 2 * row);
  EXPECT_EQ(bytes_received(forward, sizes, {2, 2}, {{all[0], Placement::shard(2)}, {Placement::shard(0), all[0]}}),
            row);
  // A row of 2 columns, then a column of 5 rows.
  EXPECT_EQ(bytes_received(forward, sizes, {2, 2}, {{Placement::shard(2), Placement::shard(3)}, {all[0], all[0]}}),
            2 * 3 * (2 + 5) * 8);
  run_ranks(2, [&](World&) {
    const auto mesh = make_mesh({2});
    const auto image = lay_out(at::rand({2, 3, 8, 4}), mesh, {Placement::shard(2, {3, 5})}).requires_grad_();
    const auto weight = lay_out(at::rand({5, 3, 3, 3}), mesh, all).requires_grad_();
    const auto result = at::conv2d(image, weight, {}, 1, at::IntArrayRef({1, 1}));
    EXPECT_EQ(spec_of(result)->placements()[0], Placement::shard(2, {3, 5}));
    const auto grads = torch::autograd::grad({result}, {image, weight}, {at::ones_like(result)});
    EXPECT_EQ(spec_of(grads[0]), spec_of(image));
    EXPECT_TRUE(spec_of(grads[1])->placements()[0].is_partial());
  });
}

TEST(ConvolutionTest, ErrorsAreTheDenseOnes) {
  const auto error = error_of_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    at::conv2d(lay_out(at::ones({2, 5, 4, 4}), mesh, {Placement::shard(0)}),
               lay_out(at::ones({2, 3, 2, 2}), mesh, {Placement::replicate()}));
  });
  expect_error("expected input[2, 5, 4, 4] to have 3 channels, but got 5", error);
}

}  // namespace
}  // namespace shardwise::convolution_test
