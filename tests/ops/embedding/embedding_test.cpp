// Lookups: any table and any ids against dense ones, gradients that stay with their rows, and ids out of range.
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/events.h"
#include "tests/support/layouts.h"
#include "tests/support/lookups.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::embedding_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

TEST(EmbeddingTest, AnyTableAndAnyIdsAreDense) {
  // Rows, columns, shape of the ids.
  const std::vector<std::tuple<int64_t, int64_t, Dims>> cases = {{10, 3, {7}}, {10, 17, {4, 3}}, {2, 5, {6}},
                                                                 {4, 4, {}},   {5, 3, {2, 0}},   {1, 2, {3, 1}}};
  for (const auto& [n_rows, n_columns, ids] : cases)
    expect_dense_lookups("embedding", [n = n_rows](const Tensors& t) { return at::embedding(t[0], ids_in(t[1], n)); },
                         {{n_rows, n_columns}, ids});
  expect_dense_lookups("embedding of a table without rows",
                       [](const Tensors& t) { return at::embedding(t[0], t[1].detach().to(at::kLong)); },
                       {{0, 3}, {0}});
  expect_dense_lookups("embedding of a table without columns",
                       [](const Tensors& t) { return at::embedding(t[0], ids_in(t[1], 4)); }, {{4, 0}, {5}});
  expect_dense_lookups("ids of int32",
                       [](const Tensors& t) { return at::embedding(t[0], ids_in(t[1], 9).to(at::kInt)); },
                       {{9, 3}, {7}});
}

TEST(EmbeddingTest, EveryDtypeIsDense) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    expect_dense_lookups(
        "embedding of another dtype",
        [=](const Tensors& t) { return at::embedding(t[0].to(dtype), ids_in(t[1], 9)).to(at::kDouble); }, {{9, 3}, {7}},
        {.low = -8, .high = 8, .max_combinations = 12});
  for (const auto dtype : {at::kLong, at::kChar, at::kBool, at::kComplexDouble})
    expect_dense_lookups("embedding of integers and complex numbers",
                         [=](const Tensors& t) { return at::embedding(t[0].to(dtype), ids_in(t[1], 9)); },
                         {{9, 3}, {7}}, {.with_grad = false, .max_combinations = 12});
}

TEST(EmbeddingTest, TablesOfFloat8AreRowsOfBytes) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const auto dense = at::arange(28, at::kFloat).view({7, 4}).to(at::kFloat8_e4m3fn), ids = at::tensor({6, 0, 6, 3});
    const auto bytes = dense.view(at::kByte).index_select(0, ids);
    for (const Placement& of_ids : {kRows, kReplicate}) {
      const LookupScope scope({.exchange = LookupExchange::kAllToAll});
      const auto own = from_pieces({dense.chunk(3)[(*mesh->coord())[0]]},
                                   Spec::intern(mesh, Dims{7, 4}, {kRows}, Dims{4, 1}, at::kFloat8_e4m3fn));
      const auto rows = redistribute(at::embedding(own, lay_out(ids, mesh, {of_ids})), {kReplicate});
      EXPECT_TRUE(maybe_dtensor(rows)->shards()[0].view(at::kByte).equal(bytes));
    }
  });
}

TEST(EmbeddingTest, PaddingGetsNoGradient) {
  for (int64_t padding : {0, 4, 8})
    expect_dense_lookups("padding_idx", [=](const Tensors& t) { return at::embedding(t[0], ids_in(t[1], 9), padding); },
                         {{9, 3}, {20}});
}

TEST(EmbeddingTest, FrequenciesCountTheWholeBatch) {
  const auto by_freq = [](const Tensors& t) {
    return at::embedding(t[0], ids_in(t[1], 4), 1, /*scale_grad_by_freq=*/true);
  };
  expect_dense_lookups("scale_grad_by_freq", by_freq, {{4, 3}, {5, 4}}, {.is_exact = false});
}

TEST(EmbeddingTest, ResultsLieWhereIdsDo) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2});
    const auto ids = at::arange(12).remainder(7);
    const Placement uneven = Placement::shard(0, {9, 3}), none = kReplicate;
    // The table's placements, the ids', the result's.
    const std::vector<std::tuple<Placements, Placements, Placements>> cases = {
        {{kRows, none}, {uneven, none}, {uneven, none}},
        {{kRows, none}, {none, uneven}, {none, uneven}},
        {{kRows, kColumns}, {uneven, none}, {uneven, kColumns}},
        {{kRows, kColumns}, {uneven, kRows}, {uneven, kRows}},
        {{kRows, kColumns}, {none, none}, {none, kColumns}},
        {{kRows, kRows}, {uneven, none}, {uneven, none}},
        {{kColumns, kColumns}, {none, uneven}, {kColumns, uneven}},
        {{none, kRows}, {kRows, kRows}, {kRows, kRows}}};
    for (const LookupExchange exchange : kExchanges)
      for (const auto& [of_table, of_ids, of_result] : cases) {
        const LookupScope scope({.exchange = exchange});
        const auto dense = at::arange(7 * 6, at::kDouble).view({7, 6});
        const auto rows = at::embedding(lay_out(dense, mesh, of_table), lay_out(ids, mesh, of_ids));
        Placements expected = of_result;
        for (size_t m = 0; m < 2; ++m) {
          if (of_table[m] == kRows && of_ids[m] == none) expected[m] = Placement::partial();
        }
        EXPECT_EQ(to_string(spec_of(rows)->placements()), to_string(expected));
        EXPECT_TRUE(full_tensor(rows).equal(at::embedding(dense, ids))) << to_string(of_table) << to_string(of_ids);
      }
  });
}

TEST(EmbeddingTest, EachRowIsRequestedOnce) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const auto table = lay_out(at::rand({8, 16}), mesh, {kRows});  // float32: rows of 64 bytes
    const auto ids =
        lay_out(at::tensor({7, 6, 7, 7, 0, 0, 1, 5}), mesh, {kRows});  // rank 0 wants 6 and 7, rank 1 0 and 1
    CommTrace trace;
    const LookupScope scope({.exchange = LookupExchange::kAllToAll});
    at::embedding(table, ids);
    // Lowest and highest id and a count; two ids; two rows.
    EXPECT_EQ(trace.bytes_received(), 3 * 8 + 2 * 4 + 2 * 64) << world.rank();
  });
}

TEST(EmbeddingTest, RowsOfReplicatedIdsAreSentOnce) {
  run_ranks(4, [](World& world) {
    const auto mesh = make_mesh({4}, {2, 0, 3, 1});
    const auto dense = at::rand({8, 16});  // rows of 64 bytes, 2 a rank
    const auto table = lay_out(dense, mesh, {kRows}).requires_grad_();
    const auto ids = lay_out(at::tensor({7, 6, 7, 7, 0, 0, 1, 5}), mesh, {kReplicate});
    CommTrace trace;
    const LookupScope scope({.exchange = LookupExchange::kAllToAll});
    const auto rows = at::embedding(table, ids);
    EXPECT_TRUE(spec_of(rows)->placements()[0].is_partial());
    const int64_t n_own = std::vector<int64_t>{2, 0, 1, 2}[(*mesh->coord())[0]];  // of rows 0, 1, 5, 6 and 7
    EXPECT_EQ(trace.total_count(), 0) << world.rank();  // that ids are equal is compared uncounted
    const auto all = redistribute(rows, {kReplicate});
    EXPECT_EQ(trace.bytes_received(), (5 - n_own) * 64) << world.rank();
    all.sum().backward();
    EXPECT_EQ(trace.total_count(), 1);  // the backward sends nothing
    EXPECT_TRUE(full_tensor(table.grad()).select(1, 0).equal(at::tensor({2, 1, 0, 0, 0, 1, 1, 3}, at::kFloat)));
  });
}

TEST(EmbeddingTest, BackwardSendsGradientsOfShardedIdsToTheirRowsOnly) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const auto table = lay_out(at::rand({8, 16}), mesh, {kRows}).requires_grad_();
    for (const Placement& of_ids : {kRows, kReplicate}) {
      const auto ids = lay_out(at::tensor({7, 6, 7, 7, 0, 0, 1, 5}), mesh, {of_ids});
      const LookupScope scope({.exchange = LookupExchange::kAllToAll});
      const auto rows = at::embedding(table, ids);
      CommTrace trace;
      const auto grad = torch::autograd::grad({rows}, {table}, {lay_out(at::ones({8, 16}), mesh, {kRows})})[0];
      EXPECT_EQ(trace.bytes_received(), 2 * 64) << world.rank();  // requests are the forward's, or known
      EXPECT_EQ(spec_of(grad), spec_of(table));
      EXPECT_TRUE(full_tensor(grad).select(1, 0).equal(at::tensor({2, 1, 0, 0, 0, 1, 1, 3}, at::kFloat)));
    }
  });
}

// Known mistake of the older systems: every rank replays the same loss, and the gradient comes out once per rank.
TEST(EmbeddingTest, TrapGradientsCountEachLossOnce) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({4});
    const auto ids = at::tensor({7, 6, 7, 7, 0, 0, 1, 5});
    const auto counts = at::tensor({2, 1, 0, 0, 0, 1, 1, 3}, at::kFloat);
    for (const LookupExchange exchange : kExchanges)
      for (const Placement& of_table : {kRows, kColumns, kReplicate})
        for (const Placement& of_ids : {kRows, kReplicate}) {
          const LookupScope scope({.exchange = exchange});
          const auto table = lay_out(at::rand({8, 4}), mesh, {of_table}).requires_grad_();
          full_tensor(at::embedding(table, lay_out(ids, mesh, {of_ids})))
              .sum()
              .backward();  // on every rank the whole loss
          EXPECT_TRUE(full_tensor(table.grad()).select(1, 0).equal(counts)) << to_string(of_table) << to_string(of_ids);
        }
  });
}

TEST(EmbeddingTest, NoRankHoldsAGradientOfAllRows) {
  run_ranks(4, [](World& world) {
    const auto mesh = make_mesh({4});
    for (const LookupExchange exchange : kExchanges)
      for (const Placement& of_ids : {kRows, kReplicate}) {
        const LookupScope scope({.exchange = exchange});
        const auto table = lay_out(at::rand({8, 16}), mesh, {Placement::shard(0, {1, 3, 0, 4})}).requires_grad_();
        at::embedding(table, lay_out(at::arange(8), mesh, {of_ids})).sum().backward();
        const at::Tensor& piece = maybe_dtensor(table.grad())->shards()[0];
        EXPECT_EQ(spec_of(table.grad()), spec_of(table));
        EXPECT_EQ(piece.storage().nbytes(), static_cast<size_t>(piece.numel()) * 4) << world.rank();
      }
  });
}

TEST(EmbeddingTest, FewIdsAreGatheredAndManyAreExchanged) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({4});
    const auto table = lay_out(at::rand({40, 16}), mesh, {kRows});
    const auto bytes_of = [&](int64_t n_ids, LookupExchange exchange) {
      CommTrace trace;
      const LookupScope scope({.exchange = exchange});
      at::embedding(table, lay_out(at::arange(n_ids).remainder(40), mesh, {kRows}));
      return trace.bytes_received();
    };
    for (const auto& [n_ids, expected] :
         {std::pair{int64_t{8}, LookupExchange::kReduceScatter}, std::pair{int64_t{100000}, LookupExchange::kAllToAll}})
      EXPECT_EQ(bytes_of(n_ids, LookupExchange::kAuto), bytes_of(n_ids, expected));
  });
}

TEST(EmbeddingTest, LinksDecideBetweenTheExchanges) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2});
    const auto table = lay_out(at::rand({40, 16}), mesh, {kReplicate, kRows});
    const auto ids = lay_out(at::arange(10000).remainder(40), mesh, {kReplicate, kRows});
    const auto bytes_by = [&](const LookupOptions& options) {
      CommTrace trace;
      const LookupScope scope(options);
      at::embedding(table, ids);
      return trace.bytes_received();
    };
    const int64_t all_to_all = bytes_by({.exchange = LookupExchange::kAllToAll});
    const int64_t reduce_scatter = bytes_by({.exchange = LookupExchange::kReduceScatter});
    ASSERT_NE(all_to_all, reduce_scatter);
    const Link normal, slow_to_start{.latency_us = 1e6};
    EXPECT_EQ(bytes_by({}), all_to_all);
    EXPECT_EQ(bytes_by({.links = {slow_to_start}}), reduce_scatter);
    EXPECT_EQ(bytes_by({.links = {normal, slow_to_start}}), reduce_scatter);
    EXPECT_EQ(bytes_by({.links = {slow_to_start, normal}}), all_to_all);  // only mesh dim 1 sends
  });
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
    const LookupScope scope({.exchange = LookupExchange::kReduceScatter});
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

TEST(EmbeddingTest, ColumnsAreInTableOrderForAnyOrderOfRanks) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}, {1, 2, 0});
    const auto dense = at::arange(6 * 17).view({6, 17}), ids = at::arange(6).flip(0);
    const auto rows = at::embedding(lay_out(dense, mesh, {kColumns}), lay_out(ids, mesh, {kReplicate}));
    EXPECT_TRUE(spec_of(rows)->placements()[0].is_shard(1));
    EXPECT_TRUE(full_tensor(rows).equal(at::embedding(dense, ids)));
  });
}

TEST(EmbeddingTest, ReplicatedTableKeepsIdsShardedAndItsGradientPartial) {
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
    for (const LookupExchange exchange : kExchanges) {
      const LookupScope scope({.exchange = exchange});
      const auto dense = at::arange(54, at::kDouble).view({9, 6}).requires_grad_();
      const auto table = lay_out(dense.detach(), mesh, {grid}).requires_grad_();
      const auto ids = at::tensor({8, 0, 3, 4, 4});
      const auto expected = at::embedding(dense, ids), rows = at::embedding(table, lay_out(ids, mesh, {kRows}));
      expected.square().sum().backward();
      rows.square().sum().backward();
      EXPECT_EQ(spec_of(table.grad()), spec_of(table));
      const auto values = full_tensor(rows.detach()), grad = full_tensor(table.grad());
      if (!mesh->is_member()) continue;
      EXPECT_TRUE(values.allclose(expected.detach()));
      EXPECT_TRUE(grad.allclose(dense.grad()));
    }
  });
}

std::string error_of(const std::vector<int64_t>& ids, const Placement& of_table, const Placement& of_ids,
                     LookupExchange exchange) {
  return error_of_ranks(3, [&](World&) {
    const auto mesh = make_mesh({3});
    const LookupScope scope({.exchange = exchange});
    at::embedding(lay_out(at::rand({10, 4}), mesh, {of_table}), lay_out(at::tensor(ids), mesh, {of_ids}));
  });
}

TEST(EmbeddingTest, IdsOutOfRangeNameTheWorstOnEveryRank) {
  for (const LookupExchange exchange : kExchanges)
    for (const Placement& of_table : {kRows, kColumns, kReplicate})
      for (const Placement& of_ids : {kRows, kReplicate}) {
        expect_error("[aten::embedding] id 12 is no row of the table: it has 10 rows. Use ids in [0, 10).",
                     error_of({0, 12, 10}, of_table, of_ids, exchange));
        expect_error("[aten::embedding] id -5 is no row", error_of({0, 11, -5}, of_table, of_ids, exchange));
      }
}

TEST(EmbeddingTest, IdsOutOfRangeStopRanksOfOtherExchangesToo) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2});
    const auto table = lay_out(at::rand({10, 4}), mesh, {kReplicate, kRows});
    const auto ids = lay_out(at::tensor({0, 1, 2, 99}), mesh, {kRows, kRows});  // 99 is the last rank's
    const LookupScope scope({.exchange = LookupExchange::kAllToAll});
    EXPECT_THROW(at::embedding(table, ids), c10::IndexError);
  });
}

TEST(EmbeddingTest, ReplicatedIdsThatDifferAreAnErrorOnEveryRank) {
  run_ranks(4, [](World& world) {
    const auto mesh = make_mesh({2, 2});
    const Placement pieces = Placement::shard(0, {9, 1});
    for (const Placements& of_table :
         {Placements{kRows, kRows}, {kReplicate, kRows}, {kReplicate, pieces}, {kRows, kColumns}})
      for (const Placements& of_ids : {Placements{kReplicate, kReplicate}, {kRows, kReplicate}}) {
        if (of_table[0] == kRows && of_ids[0] == kRows) continue;  // requested, so they may differ
        const auto table = lay_out(at::rand({10, 4}), mesh, of_table);
        const auto own = at::tensor(std::vector<int64_t>{1, 2, world.rank() == 3 ? 4 : 3});
        const auto ids = from_local(own, mesh, of_ids, {.shape = Dims{of_ids[0] == kRows ? 6 : 3}});
        std::string error;
        const LookupScope scope({.exchange = LookupExchange::kAllToAll});
        try {
          at::embedding(table, ids);
        } catch (const c10::ValueError& thrown) {
          error = thrown.what_without_backtrace();
        }
        expect_error("[aten::embedding] replicated ids differ between ranks", error);
      }
  });
}

TEST(EmbeddingTest, UncheckedIdsOutOfRangeGiveZerosAndNoGradient) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    for (const LookupExchange exchange : kExchanges)
      for (const Placement& of_table : {kRows, kColumns, kReplicate}) {
        const auto table = lay_out(at::ones({10, 4}), mesh, {of_table}).requires_grad_();
        const LookupScope scope({.exchange = exchange, .checks_ids = false});
        const auto rows = at::embedding(table, lay_out(at::tensor({3, -1, 10, 9, 3}), mesh, {kRows}));
        rows.sum().backward();
        EXPECT_TRUE(full_tensor(rows.detach()).select(1, 0).equal(at::tensor({1, 0, 0, 1, 1}, at::kFloat)));
        auto expected = at::zeros({10});
        expected[3] = 2, expected[9] = 1;
        EXPECT_TRUE(full_tensor(table.grad()).select(1, 0).equal(expected));
      }
  });
}

TEST(EmbeddingTest, RequestsForRowsAreCommunicationThatAPolicyMayForbid) {
  for (const LookupExchange exchange : kExchanges)
    expect_error("aten::embedding", error_of_ranks(2, [&](World&) {
                   const auto mesh = make_mesh({2});
                   const CommPolicyScope strict(CommPolicy::kError);
                   const LookupScope scope({.exchange = exchange});
                   at::embedding(lay_out(at::rand({10, 4}), mesh, {kRows}), lay_out(at::arange(4), mesh, {kRows}));
                 }));
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
}

}  // namespace
}  // namespace shardwise::embedding_test
