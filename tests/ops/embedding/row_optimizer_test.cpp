// Optimizers fused into the backward of lookups, against the same steps taken with a dense gradient.
#include "ops/embedding/row_optimizer.h"
#include "ops/embedding/lookup_options.h"
#include "placements/partial.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

#include <cmath>

namespace shardwise::row_optimizer_test {
namespace {

using Kind = RowOptimizer::Kind;

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

/// Steps of an optimizer on a plain table, rows without ids untouched.
struct Judge {
  RowOptimizer::Options options;
  at::Tensor table, first, second;
  int64_t n_steps = 0;

  Judge(const at::Tensor& start, const RowOptimizer::Options& of) : options(of), table(start.clone()) {
    first = at::zeros_like(table);
    second = at::zeros_like(table);
  }
  void step(const at::Tensor& ids, const at::Tensor& grads) {
    ++n_steps;
    const at::Tensor grad = at::zeros_like(table).index_add_(0, ids, grads);
    const at::Tensor is_named = at::zeros({table.size(0), 1}, at::kBool).index_fill_(0, ids, 1);
    at::Tensor step;
    if (options.kind == Kind::kSgd) step = grad * options.lr;
    if (options.kind == Kind::kAdagrad) {
      first += grad.square();
      step = options.lr * grad / (first.sqrt() + options.eps);
    }
    if (options.kind == Kind::kRowWiseAdagrad) {
      first += grad.square().mean(1, true);
      step = options.lr * grad / (first.sqrt() + options.eps);
    }
    if (options.kind == Kind::kAdam) {
      first = at::where(is_named, first.lerp(grad, 1 - options.beta1), first);
      second = at::where(is_named, second.lerp(grad.square(), 1 - options.beta2), second);
      const double rate =
          options.lr * std::sqrt(1 - std::pow(options.beta2, n_steps)) / (1 - std::pow(options.beta1, n_steps));
      step = rate * first / (second.sqrt() + options.eps);
    }
    table -= at::where(is_named, step, 0.0);
  }
};

/// Three steps of `kind` with these layouts.
void expect_steps(Kind kind, const Dims& mesh_shape, const Placements& of_table, const Placements& of_ids,
                  LookupExchange exchange, at::ScalarType dtype = at::kDouble) {
  run_ranks(4, [&](World& world) {
    const LookupScope scope({.exchange = exchange});
    const auto mesh = make_mesh(mesh_shape, {3, 1, 0, 2});
    const RowOptimizer::Options options{.kind = kind, .lr = 0.1, .eps = 1e-6};
    const at::Tensor start = at::arange(11 * 6, at::kDouble).view({11, 6}).remainder(7).sub(3).div(4);
    const at::Tensor table = lay_out(start.to(dtype), mesh, of_table).requires_grad_();
    const auto optimizer = std::make_shared<RowOptimizer>(table, options);
    fuse_optimizer(table, optimizer);
    Judge judge(start, options);
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor ids = at::arange(9).mul(3 + step).remainder(8);  // rows 8 to 10 are never named
      const at::Tensor grads =
          at::arange(54, at::kDouble).view({9, 6}).remainder(5).sub(2 + static_cast<double>(step)).div(8);
      const auto rows = at::embedding(table, lay_out(ids, mesh, of_ids));
      rows.backward(redistribute(lay_out(grads.to(dtype), mesh, Placements(mesh->ndim())),
                                 without_partial(spec_of(rows)->placements())));
      judge.step(ids, grads);
    }
    EXPECT_FALSE(table.grad().defined());
    EXPECT_EQ(optimizer->n_steps(), 3);
    const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_TRUE(full_tensor(table.detach()).to(at::kDouble).allclose(judge.table, tolerance, tolerance))
        << to_string(of_table) << " " << to_string(of_ids) << " kind " << static_cast<int>(kind) << " on "
        << world.rank();
  });
}

TEST(RowOptimizerTest, StepsAreDense) {
  const Placement uneven = Placement::shard(0, {1, 6, 0, 4});
  // The mesh, the table's placements, the ids'.
  const std::vector<std::tuple<Dims, Placements, Placements>> cases = {
      {{4}, {uneven}, {kReplicate}},
      {{4}, {uneven}, {kRows}},
      {{4}, {kColumns}, {kReplicate}},
      {{4}, {kColumns}, {kRows}},
      {{4}, {kReplicate}, {kReplicate}},
      {{4}, {kReplicate}, {kRows}},
      {{2, 2}, {kRows, kColumns}, {kRows, kReplicate}},
      {{2, 2}, {kReplicate, kRows}, {kRows, kRows}},
      {{2, 2}, {kReplicate, kReplicate}, {kRows, kRows}},
  };
  for (const Kind kind : {Kind::kSgd, Kind::kAdagrad, Kind::kRowWiseAdagrad, Kind::kAdam})
    for (const auto& [mesh, of_table, of_ids] : cases)
      for (const LookupExchange exchange : {LookupExchange::kReduceScatter, LookupExchange::kAllToAll})
        expect_steps(kind, mesh, of_table, of_ids, exchange);
}

TEST(RowOptimizerTest, SeveralPiecesARankAreDense) {
  const auto grid =
      Placement::enumerable({{{0, 0}, {4, 3}, 2}, {{4, 0}, {7, 3}, 3}, {{0, 3}, {11, 1}, 3}, {{0, 4}, {11, 2}, 2}});
  for (const Kind kind : {Kind::kSgd, Kind::kAdagrad, Kind::kAdam})
    for (const Placement& of_ids : {kReplicate, kRows})
      expect_steps(kind, {4}, {grid}, {of_ids}, LookupExchange::kAuto);
}

TEST(RowOptimizerTest, SumsAndStateAreFloat32AtLeast) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const Kind kind : {Kind::kSgd, Kind::kAdagrad, Kind::kRowWiseAdagrad, Kind::kAdam})

      expect_steps(kind, {4}, {kRows}, {kRows}, LookupExchange::kAllToAll, dtype);
}

TEST(RowOptimizerTest, ReleasedTablesHaveGradientsAgain) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor table = lay_out(at::ones({4, 2}), mesh, {kRows}).requires_grad_();
    const auto optimizer = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.lr = 1});
    fuse_optimizer(table, optimizer);
    EXPECT_EQ(fused_optimizer(table), optimizer);
    release_optimizer(table, RowOptimizer(table, {}));  // another one's
    EXPECT_EQ(fused_optimizer(table), optimizer);
    release_optimizer(table, *optimizer);
    fuse_optimizer(table, std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.lr = 1}));  // held by nobody
    at::embedding(table, lay_out(at::arange(2), mesh, {kReplicate})).sum().backward();
    EXPECT_TRUE(table.grad().defined());
    EXPECT_TRUE(full_tensor(table.detach()).equal(at::ones({4, 2})));
  });
}

TEST(RowOptimizerTest, PaddingStays) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor table = lay_out(at::ones({4, 2}), mesh, {kRows}).requires_grad_();
    const auto optimizer = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.lr = 1});
    fuse_optimizer(table, optimizer);
    at::embedding(table, lay_out(at::tensor({1, 3, 3}), mesh, {kRows}), /*padding_idx=*/3).sum().backward();
    EXPECT_TRUE(full_tensor(table.detach()).select(1, 0).equal(at::tensor({1, 0, 1, 1}, at::kFloat)));
  });
}

TEST(RowOptimizerTest, WrongArgumentsSayTheRightOnes) {
  const auto error = [](const RowOptimizer::Options& options, const at::Tensor& dense, const Placement& placement) {
    return error_of_ranks(2, [&](World&) { RowOptimizer(lay_out(dense, make_mesh({2}), {placement}), options); });
  };
  expect_error("[fuse_optimizer] lr is -1. Use a number of 0 or more.", error({.lr = -1}, at::rand({4, 3}), kRows));
  expect_error("[fuse_optimizer] beta1 is 1.", error({.kind = Kind::kAdam, .beta1 = 1}, at::rand({4, 3}), kRows));
  expect_error("[fuse_optimizer] the table of shape [4, 3] has a fused optimizer already.",
               error_of_ranks(2, [](World&) {
                 const at::Tensor table = lay_out(at::rand({4, 3}), make_mesh({2}), {kRows});
                 const auto one = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{}),
                            two = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{});
                 fuse_optimizer(table, one);
                 fuse_optimizer(table, two);
               }));
  expect_error("the optimizer was made for Float [4, 3] as [Shard(0)]", error_of_ranks(2, [](World&) {
                 const auto mesh = make_mesh({2});
                 const at::Tensor table = lay_out(at::rand({4, 3}), mesh, {kRows}).requires_grad_();
                 const auto optimizer = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{});
                 fuse_optimizer(table, optimizer);
                 table.set_data(lay_out(at::rand({4, 3}), mesh, {kReplicate}));
                 at::embedding(table, lay_out(at::arange(2), mesh, {kReplicate}));
               }));
  expect_error("[fuse_optimizer] the table of shape [4] has 1 dims.", error({}, at::rand({4}), kRows));
  expect_error("[fuse_optimizer] the table is Long.", error({}, at::arange(4).view({2, 2}), kRows));
  expect_error("[fuse_optimizer] the table is laid out as [Partial(sum)]",
               error({}, at::rand({4, 3}), Placement::partial()));
}

}  // namespace
}  // namespace shardwise::row_optimizer_test
