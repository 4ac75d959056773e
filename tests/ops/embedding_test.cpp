// Lookups: any table and any ids against dense ones, gradients that stay with their rows, and ids that are no rows.
#include "runtime/comm_trace.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

/// Ids laid out as `numbers`.
at::Tensor ids_in(const at::Tensor& numbers, int64_t n_rows) {
  return (numbers.detach() * 16).to(at::kLong).remainder(n_rows);
}

TEST(EmbeddingTest, AnyTableAndAnyIdsAreDense) {
  // Rows, columns, shape of the ids.
  const std::vector<std::tuple<int64_t, int64_t, Dims>> cases = {{10, 3, {7}}, {10, 17, {4, 3}}, {2, 5, {6}},
                                                                 {4, 4, {}},   {5, 3, {2, 0}},   {1, 2, {3, 1}}};
  for (const auto& [n_rows, n_columns, ids] : cases)
    expect_same_as_dense("embedding", [n = n_rows](const Tensors& t) { return at::embedding(t[0], ids_in(t[1], n)); },
                         {{n_rows, n_columns}, ids});
  expect_same_as_dense("embedding of a table without rows",
                       [](const Tensors& t) { return at::embedding(t[0], t[1].detach().to(at::kLong)); },
                       {{0, 3}, {0}});
  expect_same_as_dense("ids of int32",
                       [](const Tensors& t) { return at::embedding(t[0], ids_in(t[1], 9).to(at::kInt)); },
                       {{9, 3}, {7}});
}

TEST(EmbeddingTest, PaddingGetsNoGradient) {
  for (int64_t padding : {0, 4, 8})
    expect_same_as_dense("padding_idx", [=](const Tensors& t) { return at::embedding(t[0], ids_in(t[1], 9), padding); },
                         {{9, 3}, {20}});
}

TEST(EmbeddingTest, FrequenciesCountTheWholeBatch) {
  const auto by_freq = [](const Tensors& t) {
    return at::embedding(t[0], ids_in(t[1], 4), 1, /*scale_grad_by_freq=*/true);
  };
  expect_same_as_dense("scale_grad_by_freq", by_freq, {{4, 3}, {5, 4}}, {.is_exact = false});
}

TEST(EmbeddingTest, GradientsAreDifferentiable) {
  const auto second = [](const Tensors& t) {
    const at::Tensor rows = at::embedding(t[0], ids_in(t[1], 6), 2);
    const at::Tensor first =
        torch::autograd::grad({rows.mul(rows).mul(rows).sum()}, {t[0]}, {}, true, /*create_graph=*/true)[0];
    return first;
  };
  expect_same_as_dense("embedding", second, {{6, 3}, {8}}, {.is_exact = false});
}

TEST(EmbeddingTest, RowsStayWhereTheyAre) {
  run_ranks(4, [](World& world) {
    const auto mesh = make_mesh({4}, {2, 0, 3, 1});
    const Placements uneven{Placement::shard(0, {1, 3, 0, 4})};
    const auto table = lay_out(at::rand({8, 16}), mesh, uneven).requires_grad_();
    const auto ids = lay_out(at::arange(8).repeat(3), mesh, {kReplicate});
    CommTrace trace;
    const auto rows = at::embedding(table, ids);
    EXPECT_TRUE(spec_of(rows)->placements()[0].is_partial());
    const auto grad = torch::autograd::grad({rows}, {table}, {lay_out(at::ones({24, 16}), mesh, {kReplicate})})[0];
    EXPECT_EQ(trace.total_count(), 0) << world.rank();
    EXPECT_EQ(spec_of(grad), spec_of(table));
    const at::Tensor& piece = maybe_dtensor(grad)->shards()[0];
    EXPECT_EQ(piece.storage().nbytes(), static_cast<size_t>(piece.numel()) * 4);  // no [V, D] behind it
  });
}

TEST(EmbeddingTest, ColumnsComeInTableOrderWhateverTheRanks) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}, {1, 2, 0});
    const auto dense = at::arange(6 * 17).view({6, 17}), ids = at::arange(6).flip(0);
    const auto rows = at::embedding(lay_out(dense, mesh, {kColumns}), lay_out(ids, mesh, {kReplicate}));
    EXPECT_TRUE(spec_of(rows)->placements()[0].is_shard(1));
    EXPECT_TRUE(full_tensor(rows).equal(at::embedding(dense, ids)));
  });
}

TEST(EmbeddingTest, ReplicatedTableLeavesIdsCutAndItsGradientPartial) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto table = lay_out(at::rand({6, 4}), mesh, {kReplicate}).requires_grad_();
    const auto rows = at::embedding(table, lay_out(at::arange(5), mesh, {kRows}));
    EXPECT_TRUE(spec_of(rows)->placements()[0].is_shard(0));
    const auto grad = torch::autograd::grad({rows}, {table}, {at::ones_like(rows)})[0];
    EXPECT_TRUE(spec_of(grad)->placements()[0].is_partial());
  });
}

TEST(EmbeddingTest, PiecesOfAGridAreDense) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({3}, {3, 1, 2});
    const auto grid =
        Placement::enumerable({{{0, 0}, {4, 3}, 2}, {{4, 0}, {5, 3}, 3}, {{0, 3}, {9, 1}, 3}, {{0, 4}, {9, 2}, 2}});
    const auto dense = at::arange(54, at::kDouble).view({9, 6}).requires_grad_();
    const auto table = lay_out(dense.detach(), mesh, {grid}).requires_grad_();
    const auto ids = at::tensor({8, 0, 3, 4, 4});
    const auto expected = at::embedding(dense, ids), rows = at::embedding(table, lay_out(ids, mesh, {kRows}));
    expected.square().sum().backward();
    rows.square().sum().backward();
    EXPECT_EQ(spec_of(table.grad()), spec_of(table));
    const auto values = full_tensor(rows.detach()), grad = full_tensor(table.grad());
    if (!mesh->is_member()) return;
    EXPECT_TRUE(values.allclose(expected.detach()));
    EXPECT_TRUE(grad.allclose(dense.grad()));
  });
}

std::string error_of(const std::vector<int64_t>& ids, const Placement& of_table, const Placement& of_ids) {
  return error_of_ranks(3, [&](World&) {
    const auto mesh = make_mesh({3});
    at::embedding(lay_out(at::rand({10, 4}), mesh, {of_table}), lay_out(at::tensor(ids), mesh, {of_ids}));
  });
}

TEST(EmbeddingTest, IdsOutOfRangeNameTheWorstOnEveryRank) {
  for (const Placement& of_table : {kRows, kColumns, kReplicate})
    for (const Placement& of_ids : {kRows, kReplicate}) {
      expect_error("[aten::embedding] id 12 is no row of the table: it has 10 rows. Use ids in [0, 10).",
                   error_of({0, 12, 10}, of_table, of_ids));
      expect_error("[aten::embedding] id -5 is no row", error_of({0, 11, -5}, of_table, of_ids));
    }
}

TEST(EmbeddingTest, WrongArgumentsSayTheRightOnes) {
  const auto error = [](const std::function<void(const MeshPtr&)>& use) {
    return error_of_ranks(2, [&](World&) { use(make_mesh({2})); });
  };
  expect_error("[aten::embedding] ids are Float. Use int64 or int32.", error([](const MeshPtr& mesh) {
                 at::embedding(lay_out(at::rand({4, 3}), mesh, {kRows}), lay_out(at::rand({2}), mesh, {kReplicate}));
               }));
  expect_error("[aten::embedding] the table of shape [4, 3, 2] has 3 dims. Give [rows, columns].",
               error([](const MeshPtr& mesh) {
                 at::embedding(lay_out(at::rand({4, 3, 2}), mesh, {kRows}), lay_out(at::arange(2), mesh, {kReplicate}));
               }));
  expect_error("got a torch.Tensor of shape [2] next to a DTensor", error([](const MeshPtr& mesh) {
                 at::embedding(lay_out(at::rand({4, 3}), mesh, {kRows}), at::arange(2));
               }));
  expect_error("[aten::embedding] padding_idx 4 is no row of the table", error([](const MeshPtr& mesh) {
                 at::embedding(lay_out(at::rand({4, 3}), mesh, {kRows}), lay_out(at::arange(2), mesh, {kReplicate}), 4);
               }));
  expect_error("[aten::embedding] sparse=True", error([](const MeshPtr& mesh) {
                 at::embedding(lay_out(at::rand({4, 3}), mesh, {kRows}).requires_grad_(),
                               lay_out(at::arange(2), mesh, {kReplicate}), -1, false, true);
               }));
}

}  // namespace
}  // namespace shardwise
