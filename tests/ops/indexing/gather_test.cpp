// gather and scatter along any dim, in any layout of self, index and values, against dense ones, and what moves.
#include "runtime/comm/events.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::gather_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

/// Indices below `size`, laid out as `numbers`.
at::Tensor indices_in(const at::Tensor& numbers, int64_t size) {
  return (numbers.detach() * 16).to(at::kLong).remainder(size);
}

TEST(GatherTest, RulesSayWhatTheyAre) {
  EXPECT_EQ(to_string(rule("shardwise::gather")), "gather linear in the first");
  EXPECT_EQ(to_string(rule("shardwise::scatter")), "scatter");
}

TEST(GatherTest, AnySelfAndAnyIndexAreDense) {
  // self, index, dim
  const std::vector<std::tuple<Dims, Dims, int64_t>> cases = {
      {{7, 3}, {5, 3}, 0}, {{3, 7}, {3, 4}, -1}, {{7, 4}, {9, 2}, 0}, {{4, 5, 3}, {2, 5, 2}, 1},
      {{1, 3}, {2, 3}, 0}, {{6}, {4}, 0},        {{}, {}, 0},         {{4, 3}, {0, 3}, 0}};
  for (const auto& [self, index, dim] : cases)
    expect_same_as_dense(
        "gather",
        [d = dim](const Tensors& t) { return at::gather(t[0], d, indices_in(t[1], t[0].dim() ? t[0].size(d) : 1)); },
        {self, index}, {.max_combinations = 20});
}

TEST(GatherTest, BoolsAreFoundInWindows) {
  const auto bools = [](const Tensors& t) { return at::gather(t[0].gt(0), 0, indices_in(t[1], 7)); };
  expect_same_as_dense("gather of bools", bools, {{7, 3}, {5, 3}}, {.with_grad = false});
}

TEST(GatherTest, GradientsAreDifferentiable) {
  const auto second = [](const Tensors& t) {
    const at::Tensor found = at::gather(t[0], 0, indices_in(t[1], 6));
    return torch::autograd::grad({found.mul(found).mul(found).sum()}, {t[0]}, {}, true, /*create_graph=*/true)[0];
  };
  expect_same_as_dense("gather", second, {{6, 3}, {8, 3}}, {.is_exact = false});
}

TEST(GatherTest, SelfDoesNotMove) {
  const auto found = [](const Tensors& t) { return Tensors{at::gather(t[0], 0, indices_in(t[1], 8))}; };
  EXPECT_EQ(bytes_received(found, {{8, 3}, {5, 3}}, {3}, {{kRows}, {kReplicate}}), 0);
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}, {2, 0, 1});
    const auto self = lay_out(at::rand({8, 3}), mesh, {Placement::shard(0, {1, 0, 7})}).requires_grad_();
    const auto index = lay_out(at::arange(6).view({2, 3}), mesh, {kReplicate});
    CommTrace trace;
    const auto result = at::gather(self, 0, index);
    EXPECT_TRUE(spec_of(result)->placements()[0].is_partial());
    const auto grad = torch::autograd::grad({result}, {self}, {lay_out(at::ones({2, 3}), mesh, {kReplicate})})[0];
    EXPECT_EQ(trace.total_count(), 0);
    EXPECT_EQ(spec_of(grad)->layout(), spec_of(self)->layout());
  });
}

TEST(GatherTest, ShardedIndicesGiveShardedResultsAndPartialGradients) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto self = lay_out(at::rand({6, 4}), mesh, {kReplicate}).requires_grad_();
    const auto result = at::gather(self, 0, lay_out(at::arange(20).view({5, 4}).remainder(6), mesh, {kRows}));
    EXPECT_TRUE(spec_of(result)->placements()[0].is_shard(0));
    const auto grad = torch::autograd::grad({result}, {self}, {at::ones_like(result)})[0];
    EXPECT_TRUE(spec_of(grad)->placements()[0].is_partial());
  });
}

/// A permutation along dim 0 of each column: no element is written twice.
at::Tensor permutation(const at::Tensor& numbers) { return numbers.detach().argsort(/*stable=*/true, 0); }

TEST(ScatterTest, AnySelfIndexAndValuesAreDense) {
  // self, index, src
  const std::vector<std::tuple<Dims, Dims, Dims>> cases = {
      {{7, 3}, {7, 3}, {7, 3}}, {{7, 4}, {5, 2}, {5, 2}}, {{7, 4}, {5, 2}, {6, 3}}, {{4}, {3}, {3}}};
  for (const auto& [self, index, src] : cases) {
    const std::vector<Dims> sizes = {self, index, src};
    const DenseOptions options = {.with_grad = index == src,
                                  .max_combinations = 20};  // torch has no gradient of a larger src
    expect_same_as_dense(
        "scatter", [](const Tensors& t) { return at::scatter(t[0], 0, permutation(t[1]), t[2]); }, sizes, options);
    expect_same_as_dense(
        "scatter_add", [](const Tensors& t) { return at::scatter_add(t[0], 0, indices_in(t[1], 4), t[2]); }, sizes,
        options);
  }
  expect_same_as_dense("scatter of a value",
                       [](const Tensors& t) { return at::scatter(t[0], 1, indices_in(t[1], 6), 2.5); },
                       {{3, 6}, {3, 4}});
}

TEST(ScatterTest, ReductionsAreDense) {
  const std::vector<Dims> sizes = {{6, 3}, {5, 3}, {5, 3}};
  for (const char* reduce : {"add", "multiply"})
    expect_same_as_dense(reduce,
                         [=](const Tensors& t) { return at::scatter(t[0], 0, indices_in(t[1], 6), t[2], reduce); },
                         sizes, {.is_exact = false, .with_grad = false, .max_combinations = 20});
  for (const char* reduce : {"sum", "prod", "mean", "amax", "amin"})
    for (bool include_self : {true, false})
      expect_same_as_dense(reduce,
                           [=](const Tensors& t) {
                             return at::scatter_reduce(t[0], 0, indices_in(t[1], 6), t[2], reduce, include_self);
                           },
                           sizes, {.is_exact = false, .max_combinations = 8});
}

TEST(ScatterTest, InPlaceKeepsTheLayoutAndWritesOwnWindows) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}, {1, 2, 0});
    const auto dense = at::arange(24, at::kDouble).view({8, 3});
    const auto index = at::tensor({7, 0, 3}).view({1, 3}), src = at::tensor({-1., -2., -3.}).view({1, 3});
    for (const Placement& placement : {Placement::shard(0, {3, 0, 5}), kColumns, kReplicate}) {
      auto self = lay_out(dense.clone(), mesh, {placement});
      const SpecPtr before = spec_of(self);
      CommTrace trace;
      self.scatter_(0, lay_out(index, mesh, {kReplicate}), lay_out(src, mesh, {kReplicate}));
      self.scatter_add_(0, lay_out(index, mesh, {kReplicate}), lay_out(src, mesh, {kReplicate}));
      self.scatter_(0, lay_out(index, mesh, {kReplicate}), lay_out(src, mesh, {kReplicate}), "multiply");
      EXPECT_EQ(trace.total_count(), 0);
      EXPECT_EQ(spec_of(self), before);
      EXPECT_TRUE(full_tensor(self).equal(dense.scatter(0, index, src.mul(2).mul(src))));
    }
  });
}

TEST(GatherTest, PositionsOutOfRangeAreNamedOnEveryRank) {
  for (const Placement& of_index : {kReplicate, kColumns})
    expect_error("[aten::gather] index 8 is out of bounds for dimension 0 with size 8. Use indices in [0, 8).",
                 error_of_ranks(3, [&](World&) {
                   const auto mesh = make_mesh({3});
                   at::gather(lay_out(at::rand({8, 3}), mesh, {kRows}), 0,
                              lay_out(at::tensor({0, 8, 2}).view({1, 3}), mesh, {of_index}));
                 }));
  expect_error("[aten::scatter] index -1 is out of bounds for dimension 1 with size 3", error_of_ranks(3, [&](World&) {
                 const auto mesh = make_mesh({3});
                 at::scatter(lay_out(at::rand({8, 3}), mesh, {kRows}), 1,
                             lay_out(at::tensor({0, -1}).view({1, 2}), mesh, {kReplicate}), 1);
               }));
  expect_error("for index", error_of_ranks(2, [&](World&) {
                 const auto mesh = make_mesh({2});
                 at::gather(lay_out(at::rand({8, 3}), mesh, {kRows}), 0, lay_out(at::rand({1, 3}), mesh, {kRows}));
               }));
}

TEST(GatherTest, PlainIndicesAreReplicas) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto dense = at::arange(12).view({4, 3}), index = at::tensor({3, 0, 2}).view({1, 3});
    EXPECT_TRUE(full_tensor(at::gather(lay_out(dense, mesh, {kRows}), 0, index)).equal(at::gather(dense, 0, index)));
  });
}

}  // namespace
}  // namespace shardwise::gather_test
