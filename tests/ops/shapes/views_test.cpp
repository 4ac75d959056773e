// Views that only rearrange dims: values, gradients, what moves, and writes that reach the base.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::views_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

TEST(ViewsTest, ReshapesAreDense) {
  // From, to.
  const std::vector<std::pair<Dims, Dims>> cases = {
      {{6, 4}, {24}},       {{24}, {6, 4}},       {{4, 6}, {6, 4}},    {{2, 3, 4}, {6, 4}},
      {{2, 3, 4}, {2, 12}}, {{2, 12}, {2, 3, 4}}, {{5, 1, 3}, {5, 3}}, {{1, 5}, {5}},
      {{5}, {1, 5, 1}},     {{1, 1}, {}},         {{}, {1}},           {{0, 8}, {0, 2, 4}},
      {{4, 0}, {0}},        {{0, 3}, {5, 0}},     {{2, 1, 6}, {2, 6}}, {{2, 1, 6}, {12}},
      {{3, 4}, {3, 4}},     {{8, 2}, {2, 8}},     {{7, 1}, {1, 7}},    {{4, 3, 2}, {2, 2, 6}},
  };
  for (const auto& [from, to] : cases) {
    const auto reshape = [to = to](const Tensors& t) { return t[0].reshape(to); };
    const auto view = [to = to](const Tensors& t) { return t[0].view(to); };
    expect_same_as_dense("reshape", reshape, {from});
    expect_same_as_dense("view", view, {from});
  }
}

TEST(ViewsTest, ReorderedDimsAreDense) {
  expect_same_as_dense("permute", [](const Tensors& t) { return t[0].permute({2, 0, -2}); }, {{5, 2, 3}});
  expect_same_as_dense("transpose", [](const Tensors& t) { return t[0].transpose(-1, 0); }, {{5, 2, 3}});
  expect_same_as_dense("t", [](const Tensors& t) { return t[0].t(); }, {{5, 2}});
  expect_same_as_dense("t of a vector", [](const Tensors& t) { return t[0].t(); }, {{5}});
  expect_same_as_dense("transposed, then flattened",
                       [](const Tensors& t) { return t[0].transpose(0, 1).reshape({-1}); }, {{4, 6}});
  expect_same_as_dense("movedim", [](const Tensors& t) { return t[0].movedim(0, 2); }, {{2, 3, 4}});
}

TEST(ViewsTest, DimsOfOneComeAndGo) {
  expect_same_as_dense(
      "unsqueeze", [](const Tensors& t) { return Tensors{t[0].unsqueeze(0), t[0].unsqueeze(-1), t[0].unsqueeze(1)}; },
      {{5, 2}});
  // A shard of one row is not a dim of extent 1.
  expect_same_as_dense("squeeze",
                       [](const Tensors& t) { return Tensors{t[0].squeeze(), t[0].squeeze(0), t[0].squeeze(-1)}; },
                       {{3, 1, 1}});
  expect_same_as_dense("squeeze of one", [](const Tensors& t) { return t[0].squeeze(); }, {{1, 1, 5}});
  expect_same_as_dense("squeeze dims", [](const Tensors& t) { return t[0].squeeze(c10::IntArrayRef{0, 1}); },
                       {{2, 1, 3}});
}

TEST(ViewsTest, ExpandedDimsAreDense) {
  expect_same_as_dense("expand", [](const Tensors& t) { return t[0].expand({4, 3, 5}); }, {{3, 1}});
  expect_same_as_dense("expand", [](const Tensors& t) { return t[0].expand({-1, 5}); }, {{3, 1}});
  expect_same_as_dense("expand_as", [](const Tensors& t) { return t[0].expand_as(t[1]); }, {{1, 4}, {3, 4}});
  expect_same_as_dense("expand and flatten",
                       [](const Tensors& t) { return t[0].unsqueeze(1).expand({2, 3, 4}).flatten(0, 1); }, {{2, 4}});
}

TEST(ViewsTest, ShardsOfWholeRowsMoveNothing) {
  const auto split_heads = [](const Tensors& t) { return Tensors{t[0].view({2, 5, 4, 3}).transpose(1, 2)}; };
  EXPECT_EQ(bytes_received(split_heads, {{2, 5, 12}}, {4}, {{Placement::shard(2)}}), 0);
  const auto join_heads = [](const Tensors& t) { return Tensors{t[0].transpose(1, 2).reshape({2, 5, 12})}; };
  EXPECT_EQ(bytes_received(join_heads, {{2, 4, 5, 3}}, {4}, {{Placement::shard(1)}}), 0);
  const auto flatten = [](const Tensors& t) { return Tensors{t[0].view({24})}; };
  EXPECT_EQ(bytes_received(flatten, {{6, 4}}, {3}, {{Placement::shard(0, {1, 0, 5})}}), 0);
  EXPECT_EQ(bytes_received(flatten, {{6, 4}}, {2}, {{kColumns}}), 0);  // a strided Shard
  EXPECT_GT(bytes_received(flatten, {{6, 4}}, {2}, {{Placement::shard(1, {1, 3})}}), 0);
}

TEST(ViewsTest, ShardsThatEndWithinARowMoveOnlyThatRow) {
  // 12 elements in 5 and 7 become 3 rows of 4 in 1 and 2 or so: no more than a few rows move.
  const auto split = [](const Tensors& t) { return Tensors{t[0].view({3, 4})}; };
  EXPECT_LE(bytes_received(split, {{12}}, {2}, {{Placement::shard(0, {5, 7})}}), 4 * 8);
}

/// Doubles a view of a copy of a tensor and returns the copy's square: the write must reach it, and its gradient too.
void expect_writes_reach_base(const std::string& name, const Dims& sizes, const std::vector<Placement>& layout,
                              const std::function<at::Tensor(const at::Tensor&)>& view) {
  const auto compute = [&](const at::Tensor& leaf, const at::Tensor& scale) {
    const at::Tensor base = leaf.clone();
    view(base).mul_(scale);
    return base * base;
  };
  const at::Tensor plain = at::rand(sizes, at::kDouble).requires_grad_();
  const at::Tensor factor = at::rand(view(plain).sizes(), at::kDouble).requires_grad_();
  const at::Tensor expected = compute(plain, factor);
  expected.sum().backward();
  run_ranks(4, [&](World&) {
    const auto mesh = layout.size() == 1 ? make_mesh({4}) : make_mesh({2, 2});
    const at::Tensor leaf = lay_out(plain.detach(), mesh, layout).requires_grad_();
    const at::Tensor scale = lay_out(factor.detach(), mesh, Placements(layout.size())).requires_grad_();
    const at::Tensor result = compute(leaf, scale);
    result.sum().backward();
    EXPECT_TRUE(full_tensor(result.detach()).allclose(expected.detach())) << name;
    EXPECT_TRUE(full_tensor(leaf.grad()).allclose(plain.grad())) << name;
    EXPECT_TRUE(full_tensor(scale.grad()).allclose(factor.grad())) << name;
  });
}

TEST(ViewsTest, WritesReachTheBaseAndItsGradient) {
  const Dims sizes{4, 6, 2};
  expect_writes_reach_base("view", sizes, {kRows}, [](const at::Tensor& t) { return t.view({24, 2}); });
  expect_writes_reach_base("split", {12}, {kRows}, [](const at::Tensor& t) { return t.view({4, 3}); });
  expect_writes_reach_base("transpose", sizes, {kColumns}, [](const at::Tensor& t) { return t.transpose(0, 1); });
  expect_writes_reach_base("permute", sizes, {Placement::shard(1, {0, 1, 5, 0})},
                           [](const at::Tensor& t) { return t.permute({2, 1, 0}); });
  expect_writes_reach_base("slice", sizes, {kRows}, [](const at::Tensor& t) { return t.slice(0, 1, 4); });
  expect_writes_reach_base("slice by steps", sizes, {kColumns},
                           [](const at::Tensor& t) { return t.slice(1, 1, 6, 2); });
  expect_writes_reach_base("slices of both sharded dims", sizes, {kRows, kColumns},
                           [](const at::Tensor& t) { return t.slice(0, 1, 3).slice(1, 2, 5); });
  expect_writes_reach_base("select", sizes, {kRows}, [](const at::Tensor& t) { return t.select(1, 3); });
  expect_writes_reach_base("nested", sizes, {kColumns, kColumns},
                           [](const at::Tensor& t) { return t.slice(1, 1, 6).transpose(0, 1).unsqueeze(0); });
  expect_writes_reach_base("split and select", sizes, {kRows},
                           [](const at::Tensor& t) { return t.view({4, 3, 4}).select(1, 2).t(); });
  expect_writes_reach_base("pieces", sizes,
                           {Placement::enumerable({{{0, 0, 0}, {4, 2, 2}, 2}, {{0, 2, 0}, {4, 4, 2}, 2}})},
                           [](const at::Tensor& t) { return t.permute({2, 1, 0}).slice(1, 1, 4).unsqueeze(0); });
}

TEST(ViewsTest, CopiedViewsAndTheirBaseSeeEachOthersWrites) {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> views = {
      [](const at::Tensor& t) { return t.view({24}); },
      [](const at::Tensor& t) { return t.select(1, 0); },
      [](const at::Tensor& t) { return t.select(1, 0).unsqueeze(0); },
      [](const at::Tensor& t) { return t.view({24}).slice(0, 3, 9).view({2, 3}); },
  };
  run_ranks(3, [&](World&) {
    const auto mesh = make_mesh({2}, {2, 1});  // and one rank outside
    for (const auto& view : views) {
      const at::Tensor dense = at::arange(24, at::kDouble).view({4, 6});
      const at::Tensor base = lay_out(dense, mesh, {kColumns});
      at::Tensor seen = view(base), expected = view(dense);
      seen.add_(1), expected.add_(1);
      base.mul_(2), dense.mul_(2);
      if (!mesh->is_member()) continue;
      EXPECT_TRUE(full_tensor(seen).equal(expected));
      EXPECT_TRUE(full_tensor(base).equal(dense));
    }
  });
}

TEST(ViewsTest, PiecesWithGapsReshapeToo) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const at::Tensor wide = at::arange(48, at::kDouble).view({4, 12}).add(100 * world.rank());
    const at::Tensor tensor = from_local(wide.slice(1, 0, 3), mesh, {kRows});
    const at::Tensor flat = tensor.view({24});
    EXPECT_TRUE(full_tensor(flat).equal(full_tensor(tensor).view({24})));
  });
}

TEST(ViewsTest, AsStridedReadsGlobalStrides) {
  expect_same_as_dense("as_strided", [](const Tensors& t) { return t[0].as_strided({2, 3}, {1, 4}, 5); }, {{4, 4}},
                       {.with_grad = false});
  expect_same_as_dense("as_strided of a view",
                       [](const Tensors& t) { return t[0].slice(1, 0, 6, 2).as_strided({2}, {1}, 7); }, {{4, 6}},
                       {.with_grad = false});
  const auto error = error_of_ranks(2, [](World&) {
    lay_out(at::ones({4, 6}), make_mesh({2}), {kRows}).slice(1, 0, 6, 2).detach().as_strided({2}, {1});
  });
  expect_error("[aten::as_strided] elements [0, 2) of memory are not all in the DTensor of shape [4, 3]", error);
}

}  // namespace
}  // namespace shardwise::views_test
