// Group norm: values and gradients of both orders against dense ones; sharded batches and groups send nothing.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::group_norm_test {
namespace {

const DenseOptions kClose{.low = -32, .high = 32, .is_exact = false, .max_combinations = 24};

TEST(GroupNormTest, IsDense) {
  const auto norm = [](int64_t n_groups) {
    return [n_groups](const Tensors& t) { return at::group_norm(t[0], n_groups, t[1], t[2], 1e-3); };
  };
  EXPECT_EQ(to_string(rule("shardwise::group_norm")), "group_norm");
  expect_same_as_dense("group_norm", norm(3), {{4, 6, 2, 3}, {6}, {6}}, kClose);
  expect_same_as_dense("group_norm of rows", norm(2), {{5, 6}, {6}, {6}}, kClose);
  expect_same_as_dense("group_norm of one group", norm(1), {{2, 3, 2}, {3}, {3}}, kClose);
  expect_same_as_dense(
      "group_norm alone", [](const Tensors& t) { return at::group_norm(t[0], 2, {}, {}, 1e-3); }, {{3, 4, 2}}, kClose);
}

TEST(GroupNormTest, SecondDerivativesAreDense) {
  const auto second = [](const Tensors& t) {
    const at::Tensor result = at::group_norm(t[0], 2, t[1], t[2], 1e-3);
    const Tensors first = torch::autograd::grad({result.mul(result).mul(result).sum()}, {t[0], t[1], t[2]}, {}, true,
                                                /*create_graph=*/true);
    return at::cat({first[0].reshape({-1}), first[1], first[2]});
  };
  const DenseOptions small{.meshes = {{3}, {2, 2}}, .low = -16, .high = 16, .is_exact = false, .max_combinations = 16};
  expect_same_as_dense("group_norm", second, {{3, 4, 3}, {4}, {4}}, small);
}

TEST(GroupNormTest, ShardedBatchesAndGroupsSendNothing) {
  const auto train = [](const Tensors& t) {
    const Tensors inputs{t[0].detach().requires_grad_(), t[1].detach().requires_grad_(),
                         t[2].detach().requires_grad_()};
    const at::Tensor output = at::group_norm(inputs[0], 3, inputs[1], inputs[2]);
    return torch::autograd::grad({output}, inputs, {at::ones_like(output)});
  };
  const std::vector<Dims> sizes{{5, 6, 2}, {6}, {6}};
  const std::vector<Placement> all{Placement::replicate()}, first{Placement::shard(0)}, second{Placement::shard(1)};
  EXPECT_EQ(bytes_received(train, sizes, {2}, {{Placement::shard(0, {0, 5})}, all, all}), 0);
  EXPECT_EQ(bytes_received(train, sizes, {3}, {second, first, first}), 0);
  EXPECT_EQ(
      bytes_received(train, sizes, {2},
                     {{Placement::shard(1, {2, 4})}, {Placement::shard(0, {2, 4})}, {Placement::shard(0, {2, 4})}}),
      0);
}

}  // namespace
}  // namespace shardwise::group_norm_test
