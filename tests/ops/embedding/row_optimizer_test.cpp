// Optimizers fused into the backward of lookups, against the same steps taken with a dense gradient.
#include "ops/embedding/row_optimizer.h"
#include "ops/embedding/lookup_options.h"
#include "placements/placement_list.h"
#include "runtime/comm/events.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

#include <cmath>
#include <mutex>

namespace shardwise::row_optimizer_test {
namespace {

using Method = RowOptimizer::Method;

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
    const bool is_lamb = kernels::is_lamb(options.method), is_row_wise = kernels::is_row_wise(options.method);
    const bool is_beside = options.is_decoupled || is_lamb;
    at::Tensor grad = at::zeros_like(table).index_add_(0, ids, grads);
    if (!is_beside) grad += options.weight_decay * table;
    const at::Tensor is_named = at::zeros({table.size(0), 1}, at::kBool).index_fill_(0, ids, 1);
    const at::Tensor squares = is_row_wise ? grad.square().mean(1, true).expand_as(grad) : grad.square();
    at::Tensor step = grad;
    if (options.method == Method::kAdagrad || options.method == Method::kRowWiseAdagrad) {
      first = at::where(is_named, first + squares, first);
      step = grad / (first.sqrt() + options.eps);
    }
    if (kernels::has_moments(options.method)) {
      first = at::where(is_named, first.lerp(grad, 1 - options.beta1), first);
      second = at::where(is_named, second.lerp(squares, 1 - options.beta2), second);
      const double first_bias = 1 - std::pow(options.beta1, n_steps),
                   root = std::sqrt(1 - std::pow(options.beta2, n_steps));
      // LAMB as its authors write it, Adam as torch.optim.SparseAdam.
      step = is_lamb ? first / first_bias / (second.sqrt() / root + options.eps)
                     : first * (root / first_bias) / (second.sqrt() + options.eps);
    }
    if (is_beside) step = step + options.weight_decay * table;
    if (is_lamb) {
      const at::Tensor of_row = table.norm(2, 1, true), of_step = step.norm(2, 1, true);
      step = step * at::where(of_row.gt(0).logical_and(of_step.gt(0)), of_row / of_step, 1.0);
    }
    table -= at::where(is_named, options.lr * step, 0.0);
  }
};

constexpr Method kMethods[] = {Method::kSgd,         Method::kAdagrad, Method::kRowWiseAdagrad, Method::kAdam,
                               Method::kRowWiseAdam, Method::kLamb,    Method::kRowWiseLamb};

/// Three steps with these layouts. `is_transposed`: the table is the transpose of a tensor laid out so.
void expect_steps(const RowOptimizer::Options& given, const Dims& mesh_shape, const Placements& of_table,
                  const Placements& of_ids, LookupExchange exchange, at::ScalarType dtype = at::kDouble,
                  bool is_transposed = false) {
  run_ranks(4, [&](World& world) {
    const LookupScope scope({.exchange = exchange});
    const auto mesh = make_mesh(mesh_shape, {3, 1, 0, 2});
    RowOptimizer::Options options = given;
    options.lr = 0.1;
    options.eps = 1e-6;
    const at::Tensor start = at::arange(11 * 6, at::kDouble).view({11, 6}).remainder(7).sub(3).div(4);
    const at::Tensor table = (is_transposed ? lay_out(start.to(dtype).t().contiguous(), mesh, of_table).t()
                                            : lay_out(start.to(dtype), mesh, of_table))
                                 .requires_grad_();
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
        << to_string(of_table) << " " << to_string(of_ids) << " method " << static_cast<int>(options.method) << " on "
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
  for (const Method method : kMethods)
    for (const auto& [mesh, of_table, of_ids] : cases)
      for (const LookupExchange exchange : {LookupExchange::kReduceScatter, LookupExchange::kAllToAll})
        expect_steps({.method = method}, mesh, of_table, of_ids, exchange);
}

TEST(RowOptimizerTest, TransposedTablesAreDense) {
  for (const Method method : kMethods)
    for (const Placement& placement : {kRows, kColumns, kReplicate})
      expect_steps({.method = method, .weight_decay = 0.1}, {4}, {placement}, {kRows}, LookupExchange::kAuto,
                   at::kDouble,
                   /*is_transposed=*/true);
}

TEST(RowOptimizerTest, WeightsDecay) {
  for (const Method method : kMethods)
    for (const bool is_decoupled : {false, true})
      for (const Placements& of_table : {Placements{kRows}, Placements{kColumns}})
        expect_steps({.method = method, .weight_decay = 0.3, .is_decoupled = is_decoupled}, {4}, of_table, {kRows},
                     LookupExchange::kAllToAll);
}

TEST(RowOptimizerTest, SeveralPiecesARankAreDense) {
  const std::vector<Placement> layouts = {
      // Rows split among ranks, and among the pieces of one rank.
      Placement::enumerable({{{0, 0}, {4, 3}, 2}, {{4, 0}, {7, 3}, 3}, {{0, 3}, {11, 1}, 3}, {{0, 4}, {11, 2}, 2}}),
      // Some rows whole, one rank without a piece, pieces without elements.
      Placement::enumerable({{{0, 0}, {3, 6}, 3},
                             {{3, 0}, {4, 2}, 1},
                             {{3, 2}, {4, 4}, 0},
                             {{7, 0}, {4, 6}, 1},
                             {{5, 2}, {0, 2}, 0},
                             {{5, 2}, {3, 0}, 3}}),
      // Whole rows, the last first.
      Placement::enumerable({{{7, 0}, {4, 6}, 1}, {{0, 0}, {2, 6}, 1}, {{2, 0}, {0, 6}, 1}, {{2, 0}, {5, 6}, 2}})};
  for (const Method method : kMethods)
    for (const Placement& layout : layouts)
      for (const Placement& of_ids : {kReplicate, kRows})
        expect_steps({.method = method, .weight_decay = 0.2}, {4}, {layout}, {of_ids}, LookupExchange::kAuto);
}

TEST(RowOptimizerTest, OnlyRowsThatPiecesSplitAreTalkedAbout) {
  // Rows [0, 6) whole on rank 0, rows [6, 8) split among ranks 1 and 2.
  const auto layout = Placement::enumerable({{{0, 0}, {6, 4}, 0}, {{6, 0}, {2, 3}, 1}, {{6, 3}, {2, 1}, 2}});
  const auto messages_of = [&](const at::Tensor& ids) {
    return [&, ids](World& world) {
      const auto mesh = make_mesh({4});
      const at::Tensor table = lay_out(at::ones({8, 4}), mesh, {layout}).requires_grad_();
      const auto optimizer =
          std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.method = Method::kRowWiseAdagrad});
      fuse_optimizer(table, optimizer);
      const at::Tensor rows = at::embedding(table, lay_out(ids, mesh, {kReplicate}));
      const at::Tensor grad = lay_out(at::ones(rows.sizes()), mesh, {kReplicate});
      full_tensor(rows.detach());
      const CommTrace trace;
      rows.backward(grad);
      const bool shares = world.rank() == 1 || world.rank() == 2;
      const int64_t n_split = ids.ge(6).sum().item<int64_t>();
      EXPECT_EQ(trace.bytes_received(), shares ? n_split * 16 : 0) << "on " << world.rank();
    };
  };
  run_ranks(4, messages_of(at::tensor({0, 3, 5, 3})));
  run_ranks(4, messages_of(at::tensor({0, 6, 7, 3})));
}

TEST(RowOptimizerTest, RowsOfReplicatedTablesAreReducedIfThatSendsLess) {
  // The ids of a rank, the first id's distance from that of the rank before, whether rows are all-reduced.
  const std::vector<std::tuple<int64_t, int64_t, bool>> cases = {{0, 0, false},     {100, 0, false},  {500, 250, false},
                                                                 {500, 166, false}, {500, 100, true}, {1000, 0, true}};
  const auto expect_rows = [](Method method, int64_t n_ids, int64_t step, bool is_reduced) {
    run_ranks(4, [&](World&) {
      const auto mesh = make_mesh({4});
      const at::Tensor start = at::arange(1001 * 64, at::kDouble).view({1001, 64}).remainder(7).sub(3).div(4);
      const at::Tensor table = lay_out(start, mesh, {kReplicate}).requires_grad_();
      const RowOptimizer::Options options{.method = method, .lr = 0.1, .eps = 1e-6};
      const auto optimizer = std::make_shared<RowOptimizer>(table, options);
      fuse_optimizer(table, optimizer);
      const at::Tensor firsts = at::arange(4).mul(step).unsqueeze(1);
      const at::Tensor ids = at::arange(n_ids).add(firsts).remainder(1000).view(-1);  // row 1000 is never named
      const at::Tensor grads = at::arange(ids.numel() * 64, at::kDouble).view({-1, 64}).remainder(5).sub(1).div(8);
      const auto rows = at::embedding(table, lay_out(ids, mesh, {kRows}));
      const at::Tensor of_rank = lay_out(grads, mesh, {kRows});
      const CommTrace trace;
      rows.backward(of_rank);
      int64_t n_bytes = 0;
      for (const CommEvent& event : trace.events())
        if (std::string(event.collective) != "all_gather") n_bytes += event.bytes_received;  // without row numbers
      const int64_t n_distinct = step == 0 ? n_ids : 500 + 3 * step;
      EXPECT_EQ(n_bytes, (is_reduced ? 2 * 3 * n_distinct / 4 : 3 * n_ids) * 512) << n_ids << " ids";
      EXPECT_EQ(trace.counts().contains("all_reduce"), is_reduced) << n_ids << " ids";
      Judge judge(start, options);
      judge.step(ids, grads);
      const at::Tensor own = maybe_dtensor(table)->shards()[0].detach();
      EXPECT_TRUE(own.allclose(judge.table, 1e-12, 1e-12)) << n_ids << " ids, " << to_string(method);
      EXPECT_TRUE(own[1000].equal(start[1000]));
    });
  };
  for (const Method method : kMethods)
    for (const auto& [n_ids, step, is_reduced] : cases) expect_rows(method, n_ids, step, is_reduced);
}

TEST(RowOptimizerTest, SumsAndStateAreFloat32AtLeast) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const Method method : kMethods)
      expect_steps({.method = method}, {4}, {kRows}, {kRows}, LookupExchange::kAllToAll, dtype);
}

TEST(RowOptimizerTest, RoundingAtRandomIsTheSameForEveryLayout) {
  at::Tensor first;
  std::mutex mutex;
  const auto expect_same = [&](int n_ranks, const Placements& of_table, LookupExchange exchange) {
    run_ranks(n_ranks, [&](World&) {
      const LookupScope scope({.exchange = exchange});
      const auto mesh = make_mesh({n_ranks});
      const at::Tensor start = at::arange(66, at::kDouble).view({11, 6}).remainder(7).sub(3).div(4);
      const at::Tensor table = lay_out(start.to(at::kBFloat16), mesh, of_table).requires_grad_();
      const auto optimizer = std::make_shared<RowOptimizer>(
          table, RowOptimizer::Options{.method = Method::kAdagrad, .lr = 1e-3, .rounds_at_random = true, .seed = 5});
      fuse_optimizer(table, optimizer);
      for (int64_t step = 0; step < 3; ++step) {
        const auto rows = at::embedding(table, lay_out(at::arange(11), mesh, {kReplicate}));
        rows.backward(redistribute(lay_out(at::ones({11, 6}, at::kBFloat16), mesh, {kReplicate}),
                                   without_partial(spec_of(rows)->placements())));
      }
      const at::Tensor found = full_tensor(table.detach());
      EXPECT_FALSE(found.equal(start.to(at::kBFloat16)));
      const std::lock_guard lock(mutex);
      if (!first.defined()) first = found;
      EXPECT_TRUE(found.equal(first)) << to_string(of_table) << " on " << n_ranks;
    });
  };
  for (const LookupExchange exchange : {LookupExchange::kReduceScatter, LookupExchange::kAllToAll}) {
    expect_same(1, {kRows}, exchange);
    expect_same(4, {Placement::shard(0, {1, 6, 0, 4})}, exchange);
    expect_same(3, {kColumns}, exchange);
    expect_same(2, {kReplicate}, exchange);
    expect_same(2, {Placement::enumerable({{{0, 0}, {4, 6}, 1}, {{4, 0}, {7, 2}, 0}, {{4, 2}, {7, 4}, 1}})}, exchange);
  }
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
  expect_error("[fuse_optimizer] beta1 is 1.", error({.method = Method::kAdam, .beta1 = 1}, at::rand({4, 3}), kRows));
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
