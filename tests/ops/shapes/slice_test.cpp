// Slices of sharded dims: values, gradients, and that nothing moves.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::slice_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

TEST(SliceTest, AnyRangeOfAnyLayoutIsDense) {
  // Start, end, step.
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> ranges = {{0, 8, 1}, {2, 5, 1}, {-3, 100, 1},
                                                                     {1, 8, 3}, {7, 8, 9}, {5, 2, 1}};
  for (const auto& [start, end, step] : ranges)
    expect_same_as_dense(
        "slice",
        [=](const Tensors& t) { return Tensors{t[0].slice(0, start, end, step), t[0].slice(-1, start, end, step)}; },
        {{8, 5}});
  expect_same_as_dense("slice of nothing", [](const Tensors& t) { return t[0].slice(0, 0, 3); }, {{0, 4}});
  expect_same_as_dense("slice of a slice",
                       [](const Tensors& t) { return t[0].slice(0, 1, 7).slice(0, 1, 5, 2).slice(1, 2); }, {{8, 5}});
}

TEST(SliceTest, PartsAreDense) {
  expect_same_as_dense("select", [](const Tensors& t) { return Tensors{t[0].select(0, 2), t[0].select(1, -1)}; },
                       {{5, 4}});
  expect_same_as_dense("narrow", [](const Tensors& t) { return t[0].narrow(1, 1, 2); }, {{5, 4}});
  expect_same_as_dense("split", [](const Tensors& t) { return t[0].split(2, 0); }, {{5, 4}});
  expect_same_as_dense("split_with_sizes", [](const Tensors& t) { return t[0].split_with_sizes({1, 0, 3}, 1); },
                       {{5, 4}});
  expect_same_as_dense("chunk", [](const Tensors& t) { return t[0].chunk(3, 1); }, {{5, 7}});
  expect_same_as_dense("unbind", [](const Tensors& t) { return t[0].unbind(1); }, {{5, 3}});
  expect_same_as_dense("joined again", [](const Tensors& t) { return at::cat(t[0].split(2, 0)); }, {{5, 4}});
}

TEST(SliceTest, NothingMovesForwardOrBackward) {
  const auto train = [](const Tensors& t) {
    const at::Tensor leaf = t[0].requires_grad_();
    const at::Tensor part = leaf.slice(0, 1, 7, 2);
    return torch::autograd::grad({part}, {leaf}, {part.detach()});
  };
  for (const Placement& rows : {kRows, Placement::shard(0, {1, 0, 5, 3}), Placement::shard(1)})
    EXPECT_EQ(bytes_received(train, {{9, 4}}, {4}, {{rows}}), 0);
}

TEST(SliceTest, WholePartsOfAStridedShardStay) {
  // Queries, keys and values side by side; 7 columns of each over 3 ranks are 3, 3 and 1, over 8 ranks one has none.
  const Placement packed = Placement::strided_shard(1, 3);
  const auto train = [](const Tensors& t) {
    const at::Tensor leaf = t[0].requires_grad_();
    const auto parts = leaf.split(7, 1);
    const at::Tensor result = parts[0] * parts[1] + leaf.slice(1, 14) + leaf.slice(1, 0, 14).slice(1, 7);
    return torch::autograd::grad({result}, {leaf}, {result.detach()});
  };
  for (const int64_t n_ranks : {3, 8}) {
    EXPECT_EQ(bytes_received(train, {{4, 21}}, {n_ranks}, {{packed}}), 0);
    const at::Tensor plain = at::rand({4, 21}), expected = train({plain.clone()})[0];
    run_ranks(n_ranks, [&](World&) {
      const at::Tensor given = lay_out(plain, make_mesh({n_ranks}), {packed});
      EXPECT_EQ(to_string(spec_of(given.slice(1, 0, 14))->layout().placements()), "[_StridedShard(1, split_factor=2)]");
      EXPECT_TRUE(full_tensor(given.slice(1, 7, 14)).equal(plain.slice(1, 7, 14)));
      EXPECT_TRUE(full_tensor(given.slice(1, 6, 14)).equal(plain.slice(1, 6, 14)));  // a cut part moves
      EXPECT_TRUE(full_tensor(given.slice(0, 1, 4, 2)).equal(plain.slice(0, 1, 4, 2)));
      const at::Tensor written = given.clone();
      written.slice(1, 7, 14).zero_();
      EXPECT_EQ(full_tensor(written).slice(1, 7, 14).abs().sum().item<float>(), 0);
      EXPECT_TRUE(full_tensor(written).slice(1, 14).equal(plain.slice(1, 14)));
      EXPECT_TRUE(full_tensor(train({given.clone()})[0]).allclose(expected));
    });
  }
}

TEST(SliceTest, OneSelectedRowIsAllThatMoves) {
  const auto select = [](const Tensors& t) { return Tensors{t[0].select(0, 3)}; };
  EXPECT_LE(bytes_received(select, {{8, 6}}, {4}, {{kRows}}), 6 * 8);
}

TEST(SliceTest, GradientIsLaidOutAsTheTensor) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    for (const Placement& rows : {kRows, Placement::shard(0, {1, 0, 5})}) {
      const at::Tensor leaf = lay_out(at::rand({6, 4}), mesh, {rows}).requires_grad_();
      (leaf.slice(0, 4, 5).sum() + leaf.select(0, 1).sum()).backward();
      EXPECT_EQ(spec_of(leaf.grad()), spec_of(leaf));
    }
  });
}

TEST(SliceTest, SumsOverABatchStayPartialThroughSlices) {
  // Of a replicated weight whose gradient is a sum over ranks, slices send nothing.
  const auto train = [](const Tensors& t) {
    const at::Tensor weight = t[0].requires_grad_();
    const at::Tensor output = at::linear(t[1], weight.slice(0, 0, 2));
    return torch::autograd::grad({output}, {weight}, {output.detach()});
  };
  EXPECT_EQ(bytes_received(train, {{4, 3}, {6, 3}}, {2}, {{kReplicate}, {kRows}}), 0);
}

TEST(SliceTest, WrongArgumentsSayTheRightOnes) {
  const auto error = [](const std::function<void(const at::Tensor&)>& use) {
    return error_of_ranks(2, [&](World&) { use(lay_out(at::ones({4, 6}), make_mesh({2}), {kRows})); });
  };
  expect_error("[aten::select] index 4 is out of range for dim 0 of a tensor of shape [4, 6]. Use an index in [-4, 4).",
               error([](const at::Tensor& t) { t.select(0, 4); }));
  expect_error("[aten::split_with_sizes] sizes [1, 2] add up to 3, but dim 0 has 4",
               error([](const at::Tensor& t) { t.split_with_sizes({1, 2}); }));
  expect_error("[aten::split] split size 0", error([](const at::Tensor& t) { t.split(0); }));
}

}  // namespace
}  // namespace shardwise::slice_test
