// Pooled lookups: any table, ids and bags against dense ones, pooled before they are sent.
#include "runtime/comm/events.h"
#include "runtime/dispatch/plain_operand.h"
#include "tests/support/layouts.h"
#include "tests/support/lookups.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace shardwise::embedding_bag_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);
constexpr int64_t kSum = 0, kMean = 1, kMax = 2;

struct BagOptions {
  bool by_freq = false;
  bool include_last = false;
  std::optional<int64_t> padding = {};
};

at::Tensor replicas_beside(const at::Tensor& table, const at::Tensor& dense) {
  const MeshPtr& mesh = spec_of(table)->mesh();
  return lay_out(dense, mesh, Placements(mesh->ndim()));
}

at::Tensor pooled(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& offsets, int64_t mode,
                  const std::optional<at::Tensor>& weights = {}, const BagOptions& options = {}) {
  const at::Tensor starts = is_dtensor(table) ? replicas_beside(table, offsets) : offsets;
  return std::get<0>(at::embedding_bag(table, ids, starts, options.by_freq, mode, /*sparse=*/false, weights,
                                       options.include_last, options.padding));
}

void expect_dense_bags(const std::string& name, const std::function<at::Tensor(const Tensors&)>& pool,
                       const std::vector<Dims>& sizes, const DenseOptions& options = {.is_exact = false}) {
  expect_dense_lookups(name, pool, sizes, options);
}

TEST(EmbeddingBagTest, AnyTableAndAnyBagsAreDense) {
  // Offsets: with empty bags first, last and between; bags of one length, which sharded ids fit; one bag.
  const std::vector<std::vector<int64_t>> cases = {{0, 0, 3, 3, 4, 9}, {0, 3, 6}, {0}, {0, 1, 2, 3, 4, 5, 6, 7, 8}};
  for (const auto& offsets : cases)
    for (const int64_t mode : {kSum, kMean, kMax})
      expect_dense_bags(
          fmt::format("embedding_bag of mode {}", mode),
          [&, mode](const Tensors& t) { return pooled(t[0], ids_in(t[1], 7), at::tensor(offsets), mode); },
          {{7, 5}, {9}}, {.is_exact = false, .max_combinations = 20});
}

TEST(EmbeddingBagTest, NothingIsDense) {
  for (const int64_t mode : {kSum, kMean, kMax}) {
    expect_dense_bags("bags without ids",
                      [=](const Tensors& t) { return pooled(t[0], ids_in(t[1], 7), at::zeros({3}, at::kLong), mode); },
                      {{7, 5}, {0}}, {.max_combinations = 12});
    expect_dense_bags("no bags",
                      [=](const Tensors& t) { return pooled(t[0], ids_in(t[1], 7), at::zeros({0}, at::kLong), mode); },
                      {{7, 5}, {0}}, {.max_combinations = 12});
  }
}

TEST(EmbeddingBagTest, PaddingCountsNothing) {
  for (const int64_t mode : {kSum, kMean, kMax})
    for (const int64_t padding : {0, -1, 3})
      expect_dense_bags("padding_idx",
                        [=](const Tensors& t) {
                          return pooled(t[0], ids_in(t[1], 4), at::tensor({0, 1, 4, 4, 9}), mode, {},
                                        {.padding = padding});
                        },
                        {{4, 3}, {12}}, {.is_exact = false, .max_combinations = 12});
}

TEST(EmbeddingBagTest, WeightsAndTheirGradientsAreDense) {
  const auto weighted = [](const Tensors& t) {
    return pooled(t[0], ids_in(t[1], 5), at::tensor({0, 2, 4, 6}), kSum, t[2]);
  };
  expect_dense_bags("per_sample_weights", weighted, {{5, 3}, {8}, {8}});
  const auto padded = [](const Tensors& t) {
    return pooled(t[0], ids_in(t[1], 5), at::tensor({0, 0, 5, 8}), kSum, t[2], {.include_last = true, .padding = 2});
  };
  expect_dense_bags("padded per_sample_weights", padded, {{5, 3}, {8}, {8}});
}

TEST(EmbeddingBagTest, IncludedLastOffsetsEndTheLastBag) {
  for (const int64_t mode : {kSum, kMean, kMax})
    expect_dense_bags("include_last_offset",
                      [=](const Tensors& t) {
                        return pooled(t[0], ids_in(t[1], 5), at::tensor({0, 2, 2, 6}), mode, {},
                                      {.include_last = true});
                      },
                      {{5, 3}, {6}}, {.is_exact = false, .max_combinations = 12});
}

TEST(EmbeddingBagTest, IdsBehindTheLastOffsetAreInNoBag) {
  // The judge has only the ids of the bags: torch 2.13 counts those behind as one bag more, for which its results have no room, in all but
  // float32 sums without padding; it then gives other sums, or ends the process.
  for (const auto& offsets : std::vector<std::vector<int64_t>>{{0, 2, 2, 5}, {0, 2, 4}, {0, 3, 3, 3}, {0}})
    for (const int64_t mode : {kSum, kMean, kMax})
      for (const bool is_weighted : {false, true}) {
        if (is_weighted && mode != kSum) continue;
        for (const std::optional<int64_t> padding : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
          const auto pool = [&](const Tensors& t) {
            const BagOptions options{.include_last = true, .padding = padding};
            const int64_t n_ids = is_dtensor(t[0]) ? 7 : offsets.back();
            const auto weights = is_weighted ? std::optional(t[2].narrow(0, 0, n_ids)) : std::nullopt;
            return pooled(t[0], ids_in(t[1], 5).narrow(0, 0, n_ids), at::tensor(offsets), mode, weights, options);
          };
          expect_dense_bags(fmt::format("offsets to {} of 7, mode {}", offsets.back(), mode), pool,
                            is_weighted ? std::vector<Dims>{{5, 3}, {7}, {7}} : std::vector<Dims>{{5, 3}, {7}},
                            {.is_exact = false, .max_combinations = 4});
        }
      }
}

TEST(EmbeddingBagTest, FrequenciesCountTheWholeBatch) {
  // The judge pools what embedding() finds: torch 2.13's embedding_bag counts other ids than the row's own on the CPU.
  const auto ids_of = [](const Tensors& t) { return ids_in(t[1], 3); };
  for (const int64_t mode : {kSum, kMean})
    expect_dense_bags("scale_grad_by_freq",
                      [=](const Tensors& t) {
                        if (is_dtensor(t[0]))
                          return pooled(t[0], ids_of(t), at::tensor({0, 2, 5}), mode, {}, {.by_freq = true});
                        const auto rows = at::embedding(t[0], ids_of(t), -1, /*scale_grad_by_freq=*/true);
                        const auto sizes = at::tensor({2, 3, 3}, at::kDouble).unsqueeze(1);
                        const auto sums =
                            at::zeros({3, 2}, at::kDouble).index_add(0, at::tensor({0, 0, 1, 1, 1, 2, 2, 2}), rows);
                        return mode == kMean ? sums / sizes : sums;
                      },
                      {{3, 2}, {8}}, {.is_exact = false, .max_combinations = 12});
}

TEST(EmbeddingBagTest, EqualMaximaComeFromTheFirstId) {
  // All rows are equal: of each bag the first id gets the gradient, whichever rank holds its row.
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const auto ids = at::tensor({5, 1, 3, 0, 4, 2}), offsets = at::tensor({0, 3});
    for (const LookupExchange exchange : kExchanges)
      for (const Placement& of_ids : {kReplicate, kRows}) {
        const LookupScope scope({.exchange = exchange});
        const auto table = lay_out(at::ones({6, 2}), mesh, {kRows}).requires_grad_();
        pooled(table, lay_out(ids, mesh, {of_ids}), offsets, kMax).sum().backward();
        EXPECT_TRUE(full_tensor(table.grad()).select(1, 0).equal(at::tensor({1, 0, 0, 0, 0, 1}, at::kFloat)));
      }
  });
}

TEST(EmbeddingBagTest, NaNIsTheLargestInWhateverPiece) {
  run_ranks(1, [](World&) {
    const auto mesh = make_mesh({1});
    const auto pieces = Placement::enumerable({{{0, 0}, {2, 2}, 0}, {{2, 0}, {2, 2}, 0}, {{4, 0}, {2, 2}, 0}});
    auto dense = at::arange(12, at::kDouble).view({6, 2});
    dense[3][1] = dense[4][1] = std::numeric_limits<double>::quiet_NaN();
    const auto ids = lay_out(at::tensor({5, 3, 4, 1, 0, 4, 2, 5}), mesh, {kReplicate});
    const auto values_and_grad = [&](const Placement& placement) {
      const auto table = lay_out(dense, mesh, {placement}).requires_grad_();
      const auto values = pooled(table, ids, at::tensor({0, 3, 6}), kMax);
      values.sum().backward();
      return std::pair{full_tensor(values.detach()), full_tensor(table.grad())};
    };
    const auto [values, grad] = values_and_grad(pieces);
    const auto [expected, expected_grad] = values_and_grad(kRows);
    EXPECT_EQ(expected.isnan().sum().item<int64_t>(), 2);
    EXPECT_TRUE(values.allclose(expected, 0, 0, /*equal_nan=*/true)) << values;
    EXPECT_TRUE(grad.equal(expected_grad)) << grad;
  });
}

TEST(EmbeddingBagTest, PiecesOfAGridAreDense) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({3}, {3, 1, 2});
    const auto grid =
        Placement::enumerable({{{0, 0}, {4, 3}, 2}, {{4, 0}, {5, 3}, 3}, {{0, 3}, {9, 1}, 3}, {{0, 4}, {9, 2}, 2}});
    const auto ids = at::tensor({8, 0, 3, 4, 4, 1}), offsets = at::tensor({0, 2, 4});
    for (const LookupExchange exchange : kExchanges)
      for (const Placement& of_ids : {kReplicate, kRows})
        for (const int64_t mode : {kSum, kMean, kMax}) {
          const LookupScope scope({.exchange = exchange});
          const auto dense = at::arange(54, at::kDouble).view({9, 6}).mul(2.7).sin();
          const auto plain = lay_out(dense, mesh, {kReplicate}), table = lay_out(plain, mesh, {grid}).requires_grad_();
          const auto judge = full_tensor(plain).requires_grad_();
          const auto values = pooled(table, lay_out(ids, mesh, {of_ids}), offsets, mode);
          values.square().sum().backward();
          const auto all = full_tensor(values.detach()), grad = full_tensor(table.grad());
          if (!mesh->is_member()) continue;
          const auto expected = pooled(judge, ids, offsets, mode);
          expected.square().sum().backward();
          EXPECT_TRUE(all.allclose(expected.detach())) << mode;
          EXPECT_TRUE(grad.allclose(judge.grad())) << mode;
        }
  });
}

TEST(EmbeddingBagTest, BagsArePooledBeforeTheyAreSent) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({2});
    const auto table = lay_out(at::rand({8, 16}), mesh, {kRows});
    const auto offsets = at::arange(0, 40, 10);  // 4 bags of 10 ids
    const LookupScope scope({.exchange = LookupExchange::kReduceScatter, .checks_ids = false});
    {
      CommTrace trace;
      const auto sums = pooled(table, lay_out(at::arange(40).remainder(8), mesh, {kReplicate}), offsets, kSum);
      EXPECT_TRUE(spec_of(sums)->placements()[0].is_partial());
      EXPECT_EQ(trace.total_count(), 0) << world.rank();
    }
    CommTrace trace;
    const auto sums = pooled(table, lay_out(at::arange(40).remainder(8), mesh, {kRows}), offsets, kSum);
    EXPECT_TRUE(spec_of(sums)->placements()[0].is_shard(0));
    EXPECT_EQ(trace.bytes_received(), 20 * 8 + 2 * 64) << world.rank();  // the other's ids, and two of its sums
  });
}

TEST(EmbeddingBagTest, CutIdsOfWholeBagsCutTheBags) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const auto table = lay_out(at::rand({8, 4}), mesh, {kReplicate});
    const auto ids = lay_out(at::arange(9).remainder(8), mesh, {Placement::shard(0, {5, 0, 4})});
    const auto whole = pooled(table, ids, at::tensor({0, 2, 5, 5, 6}), kSum);  // bags 0, 1 | | 2, 3, 4
    EXPECT_EQ(to_string(spec_of(whole)->placements()), "[Shard(0, sizes=[2, 0, 3])]");
    const auto within = pooled(table, ids, at::tensor({0, 2, 4, 6}), kSum);  // bag 2 has ids 4 and 5
    EXPECT_TRUE(spec_of(within)->placements()[0].is_whole());
  });
}

TEST(EmbeddingBagTest, CutsThatALookupMovesIntoBagsAreGathered) {
  // Ids are gathered along the dim that shards rows. The other dim then shards them alone, within bags.
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2});
    const auto dense = at::arange(30, at::kDouble).view({10, 3});
    const auto ids = at::tensor({9, 4, 6, 4, 2, 0, 8, 4, 8, 0}), offsets = at::arange(0, 10, 2);
    const auto expected = pooled(dense, ids, offsets, kSum);
    for (const LookupExchange exchange : kExchanges)
      for (const Placements& of_table : {Placements{kRows, kReplicate}, Placements{kReplicate, kRows}}) {
        const LookupScope scope({.exchange = exchange});
        const auto sharded = redistribute(lay_out(ids, mesh, {kReplicate, kReplicate}),
                                          {Placement::shard(0, {6, 4}), Placement::shard(0, {4, 2, 2, 2})});
        EXPECT_TRUE(full_tensor(pooled(lay_out(dense, mesh, of_table), sharded, offsets, kSum)).equal(expected));
      }
  });
}

TEST(EmbeddingBagTest, PaddingOfRowsElsewhereCountsNothing) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2});
    const auto dense = at::arange(24, at::kDouble).view({8, 3}).add(1);
    const auto ids = at::tensor({4, 7, 4, 2}), offsets = at::tensor({0, 2});
    const auto expected = pooled(dense, ids, offsets, kMean, {}, {.padding = 4});
    for (const LookupExchange exchange : kExchanges)
      for (const Placements& of_table : {Placements{kRows, kRows}, Placements{kRows, kColumns}}) {
        const LookupScope scope({.exchange = exchange});
        const auto means = pooled(lay_out(dense, mesh, of_table), lay_out(ids, mesh, {kRows, kReplicate}), offsets,
                                  kMean, {}, {.padding = 4});
        EXPECT_TRUE(full_tensor(means).allclose(expected));
      }
  });
}

TEST(EmbeddingBagTest, PlainOperandsAreErrorsOnAllRanks) {
  // Offsets of bags of one length that hold all ids are those that torch makes of ids of two dims.
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({3});
    const auto table = lay_out(at::rand({4, 3}), mesh, {kRows}), ids = lay_out(at::arange(6) % 4, mesh, {kRows});
    const auto own = at::tensor({world.rank(), int64_t{1}});
    const auto pool = [&](const at::Tensor& of, const at::Tensor& offsets, const std::optional<at::Tensor>& weights) {
      return std::get<0>(at::embedding_bag(table, of, offsets, false, kSum, false, weights));
    };
    const auto expect = [&](const char* words, const auto& call) {
      try {
        call();
        ADD_FAILURE() << words << " on rank " << world.rank();
      } catch (const c10::ValueError& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      }
    };
    expect("got a torch.Tensor of shape [2] next to a DTensor, as indices. Wrap it with",
           [&] { pool(own, at::tensor({0}), {}); });
    expect("[2] next to a DTensor, as offsets", [&] { pool(ids, at::tensor({0, 2}), {}); });
    expect("[1] next to a DTensor, as offsets", [&] { pool(ids, at::tensor({1}), {}); });
    expect("[6] next to a DTensor, as per_sample_weights", [&] { pool(ids, at::tensor({0, 2, 4}), at::rand({6})); });
    const ImplicitReplication within;
    EXPECT_EQ(pool(own * 0 + 1, at::tensor({0, 1}), at::ones({2})).sizes(), at::IntArrayRef({2, 3}));
  });
}

TEST(EmbeddingBagTest, WrongArgumentsSayTheRightOnes) {
  const auto error = [](const std::function<void(const at::Tensor&, const at::Tensor&)>& use) {
    return error_of_ranks(2, [&](World&) {
      const auto mesh = make_mesh({2});
      use(lay_out(at::rand({4, 3}), mesh, {kRows}), lay_out(at::arange(4), mesh, {kReplicate}));
    });
  };
  const auto expect = [&](const char* words, const at::Tensor& offsets, int64_t mode = kSum,
                          const std::optional<at::Tensor>& weights = {}, const BagOptions& options = {}) {
    expect_error(words, error([&](const at::Tensor& table, const at::Tensor& ids) {
                   const auto of_ids = weights ? std::optional(replicas_beside(table, *weights)) : weights;
                   pooled(table, ids, offsets, mode, of_ids, options);
                 }));
  };
  expect("[aten::embedding_bag] offsets begin with 1. Bag 0 begins at 0.", at::tensor({1, 2}));
  expect("[aten::embedding_bag] offsets fall from 3 to 2 at 2.", at::tensor({0, 3, 2}));
  expect("[aten::embedding_bag] the last offset is 5, but there are 4 ids.", at::tensor({0, 5}));
  expect("[aten::embedding_bag] offsets of shape [1, 1] have 2 dims.", at::zeros({1, 1}, at::kLong));
  expect("[aten::embedding_bag] offsets are Float.", at::zeros({1}));
  expect("[aten::embedding_bag] mode 3 is unknown.", at::tensor({0}), 3);
  expect("[aten::embedding_bag] per_sample_weights go with mode \"sum\" only.", at::tensor({0}), kMean, at::ones({4}));
  expect("[aten::embedding_bag] per_sample_weights have shape [3], the ids [4].", at::tensor({0}), kSum, at::ones({3}));
  expect("[aten::embedding_bag] padding_idx -5 is no row of the table", at::tensor({0}), kSum, {}, {.padding = -5});
  expect("[aten::embedding_bag] there are 4 ids, but no bags for them.", at::zeros({0}, at::kLong));
  expect("[aten::embedding_bag] padding_idx 4 is no row of the table", at::tensor({0}), kSum, {}, {.padding = 4});
  expect_error(
      "[aten::embedding_bag] id 4 is no row of the table",
      error([](const at::Tensor& table, const at::Tensor& ids) { pooled(table, ids + 1, at::tensor({0}), kSum); }));
}

}  // namespace
}  // namespace shardwise::embedding_bag_test
