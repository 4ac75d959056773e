// max_norm: rows named anywhere in the group, and only those, shortened by their whole row's norm.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

#include <limits>

namespace shardwise::embedding_renorm_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Renormalises a copy of `table`: expect_same_as_dense() wants its inputs as they were. A Partial has no rows to shorten.
at::Tensor renormed(const at::Tensor& table, const at::Tensor& numbers, double max_norm, double p) {
  at::Tensor copy = table.detach().clone();
  if (is_dtensor(copy) && spec_of(copy)->layout().has_terms())
    copy = redistribute(copy, Placements(spec_of(copy)->placements().size()));
  const at::Tensor ids = (numbers.detach() * 16).to(at::kLong).remainder(table.size(0));
  return at::embedding_renorm_(copy, ids, max_norm, p);
}

TEST(MaxNormTest, RowsNamedAnywhereAreDense) {
  for (const double p : {1.0, 2.0, 3.0, 0.0, kInfinity})
    for (const double max_norm : {0.5, 4.0, 1000.0})
      expect_same_as_dense("embedding_renorm_", [=](const Tensors& t) { return renormed(t[0], t[1], max_norm, p); },
                           {{10, 5}, {6}}, {.is_exact = false, .with_grad = false, .max_combinations = 12});
}

TEST(MaxNormTest, NoIdsChangeNothing) {
  expect_same_as_dense("embedding_renorm_ of no ids", [](const Tensors& t) { return renormed(t[0], t[1], 0.1, 2); },
                       {{4, 3}, {0}}, {.with_grad = false, .max_combinations = 12});
}

// Known mistakes of the older systems: a real id dropped in place of the dummy one, a norm over the local columns only, p = inf, the dummy
// row of every rank renormalised.

TEST(MaxNormTest, TrapEveryRealIdCounts) {
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({3});
    const auto table = lay_out(at::full({6, 4}, 10.0), mesh, {Placement::shard(0)});
    // Each rank names one row of another rank, the first and the last among them.
    at::embedding_renorm_(const_cast<at::Tensor&>(table), lay_out(at::tensor({5, 0, 3}), mesh, {Placement::shard(0)}),
                          1, 2);
    const auto norms = full_tensor(table).norm(2, {1});
    EXPECT_TRUE(norms.allclose(at::tensor({1., 20., 20., 1., 20., 1.}, norms.options()))) << world.rank() << norms;
  });
}

TEST(MaxNormTest, TrapNormsAreOfWholeRows) {
  run_ranks(4, [](World& world) {
    const auto mesh = make_mesh({4}, {2, 0, 3, 1});
    for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
      // Each rank's columns are short enough by themselves, together they are not; of p = inf one column is too long.
      auto dense = at::full({3, 5}, 1.0);
      if (std::isinf(p)) dense.select(1, 3).fill_(9);
      at::Tensor table = lay_out(dense, mesh, {Placement::shard(1)});
      at::embedding_renorm_(table, lay_out(at::tensor({1}), mesh, {Placement::replicate()}), 1.5, p);
      at::Tensor judge = dense.clone();
      at::embedding_renorm_(judge, at::tensor({1}), 1.5, p);
      EXPECT_TRUE(full_tensor(table).allclose(judge)) << p << " on " << world.rank();
    }
  });
}

TEST(MaxNormTest, TrapRowsThatNobodyNamedStay) {
  run_ranks(4, [](World& world) {
    const auto mesh = make_mesh({4});
    const auto dense = at::full({8, 2}, 5.0);
    for (const auto& of_table : {Placement::shard(0), Placement::shard(1), Placement::shard(0, {1, 0, 6, 1})}) {
      at::Tensor table = lay_out(dense, mesh, {of_table});
      at::embedding_renorm_(table, lay_out(at::tensor({6, 6}), mesh, {Placement::replicate()}), 1, 2);
      const auto changed = full_tensor(table).ne(dense).any(1);
      EXPECT_EQ(changed.sum().item<int64_t>(), 1) << world.rank();
      EXPECT_TRUE(changed[6].item<bool>());
    }
  });
}

TEST(MaxNormTest, TransposedTablesAreDense) {
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({3});
    const auto dense = at::arange(54, at::kDouble).view({6, 9}), ids = at::tensor({8, 0, 4});
    auto expected = dense.t().contiguous();
    at::embedding_renorm_(expected, ids, 1.5, 2);
    const auto pieces = Placement::enumerable({{{0, 0}, {6, 4}, 0}, {{0, 4}, {4, 5}, 2}, {{4, 4}, {2, 5}, 2}});
    for (const auto& placement : {Placement::shard(0), Placement::shard(1), Placement::replicate(), pieces}) {
      at::Tensor table = lay_out(dense, mesh, {placement}).t();
      at::embedding_renorm_(table, lay_out(ids, mesh, {Placement::shard(0)}), 1.5, 2);
      EXPECT_TRUE(full_tensor(table).allclose(expected)) << to_string(placement) << " on " << world.rank();
    }
  });
}

TEST(MaxNormTest, PiecesOfAGridAreDense) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({3}, {3, 1, 2});
    const auto grid =
        Placement::enumerable({{{0, 0}, {4, 3}, 2}, {{4, 0}, {5, 3}, 3}, {{0, 3}, {9, 1}, 3}, {{0, 4}, {9, 2}, 2}});
    for (const double p : {2.0, kInfinity}) {
      auto dense = at::arange(54, at::kDouble).view({9, 6});
      at::Tensor table = lay_out(dense, mesh, {grid});
      at::embedding_renorm_(table, lay_out(at::tensor({8, 0, 4}), mesh, {Placement::shard(0)}), 1.5, p);
      const auto all = full_tensor(table);
      if (!mesh->is_member()) continue;
      EXPECT_TRUE(all.allclose(at::embedding_renorm_(dense, at::tensor({8, 0, 4}), 1.5, p)));
    }
  });
}

TEST(MaxNormTest, WrongArgumentsSayTheRightOnes) {
  const auto error = [](double max_norm, double p, const at::Tensor& ids) {
    return error_of_ranks(2, [&](World&) {
      const auto mesh = make_mesh({2});
      at::Tensor table = lay_out(at::rand({4, 3}), mesh, {Placement::shard(0)});
      at::embedding_renorm_(table, lay_out(ids, mesh, {Placement::shard(0)}), max_norm, p);
    });
  };
  const auto ids = at::arange(2);
  expect_error("[aten::embedding_renorm_] max_norm is 0. Use a number above 0", error(0, 2, ids));
  expect_error("[aten::embedding_renorm_] max_norm is -1.", error(-1, 2, ids));
  expect_error("[aten::embedding_renorm_] norm_type is -2.", error(1, -2, ids));
  expect_error("[aten::embedding_renorm_] id 5 is no row of the table", error(1, 2, ids + 4));
  expect_error("[aten::embedding_renorm_] ids are Float.", error(1, 2, at::rand({2})));
}

}  // namespace
}  // namespace shardwise::embedding_renorm_test
