// Many tables behind one layer against dense lookups: values, gradients, messages, bytes, fused optimizers.
#include "wrappers/distributed_embedding/distributed_embedding.h"

#include "ops/embedding/row_optimizer.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/events.h"
#include "tests/support/embedding_problem.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

namespace shardwise::distributed_embedding_test {
namespace {

void expect_dense(uint32_t seed, int64_t n_ranks, int64_t n_tables, bool mean_gradients) {
  const EmbeddingProblem problem = random_problem(seed, n_ranks, n_tables);
  const DenseAnswer dense = dense_answer(problem, mean_gradients);
  run_ranks(n_ranks, [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features,
                               {.mean_gradients = mean_gradients});
    const Tensors tables = filled(layer, problem.values);
    for (int64_t step = 0; step < 2; ++step) {  // the second knows the messages' lengths
      Tensors weights;
      const auto inputs = with_leaves(problem.inputs[rank], weights);
      const Tensors results = layer.start(given(inputs), tables)->wait();
      const std::string where = fmt::format("seed {}, rank {} of {}, step {}", seed, rank, n_ranks, step);
      for (size_t f = 0; f < results.size(); ++f)
        expect_equal(results[f], dense.results[rank][f], fmt::format("{}, result {}", where, f));
      for (const at::Tensor& table : tables) table.mutable_grad() = at::Tensor();
      torch::autograd::backward(results, problem.grads[rank]);
      for (size_t f = 0; f < weights.size(); ++f)
        if (weights[f].defined())
          expect_equal(weights[f].grad(), dense.weight_grads[rank][f], fmt::format("{}, weights {}", where, f));
      for (size_t t = 0; t < tables.size(); ++t)
        expect_equal(full_tensor(tables[t].grad()), dense.table_grads[t], fmt::format("{}, table {}", where, t));
    }
  });
}

TEST(DistributedEmbeddingTest, D7RandomPlansAreDense) {
  for (uint32_t seed = 0; seed < 30; ++seed) expect_dense(seed, 1 + seed % 4, 1 + seed % 7, seed % 2 == 0);
}

/// For each feature the ids 0, 1, 1, 2, 2, 2, ... of 21 samples, shifted by rank.
std::vector<FeatureInput> repeated_ids(const EmbeddingProblem& problem, int64_t rank) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 6; ++id) ids.insert(ids.end(), id + 1, id + rank);
  return std::vector<FeatureInput>(problem.features.size(), FeatureInput{at::tensor(ids), {}, {}, {}});
}

TEST(DistributedEmbeddingTest, TwoExchangesForwardAndOneBackwardWhateverTheNumberOfTables) {
  for (const int64_t n_tables : {1, 3, 26}) {
    const EmbeddingProblem problem = round_robin_problem(n_tables, 3);
    run_ranks(3, [&](World& world) {
      DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
      const Tensors tables = filled(layer, problem.values);
      const auto inputs = repeated_ids(problem, world.rank());
      layer.start(given(inputs), tables)->wait();
      const CommTrace forward;
      const Tensors results = layer.start(given(inputs), tables)->wait();
      EXPECT_LE(forward.total_count(), 2) << n_tables << " tables";
      Tensors grads;
      for (const at::Tensor& result : results) grads.push_back(at::ones_like(result));
      const CommTrace backward;
      torch::autograd::backward(results, grads);
      EXPECT_LE(backward.total_count(), 1) << n_tables << " tables";
      // Six unique rows of each table, of 4 doubles, to and from the two ranks that are not its owner.
      int64_t n_asked = 0, n_given = 0;
      for (int64_t t = 0; t < n_tables; ++t)
        (t % 3 == world.rank() ? n_given : n_asked) += t % 3 == world.rank() ? 12 : 6;
      EXPECT_EQ(backward.bytes_sent(), n_asked * 32);
      EXPECT_EQ(backward.bytes_received(), n_given * 32);
    });
  }
}

TEST(DistributedEmbeddingTest, BytesAreThoseOfUniqueIdsAndTheirRowsWithinOnePercent) {
  EmbeddingProblem problem = round_robin_problem(6, 3);
  for (size_t t = 0; t < problem.configs.size(); ++t) {
    problem.configs[t].n_rows = 5000;
    problem.configs[t].n_columns = 64;
    problem.plans[t].slices = {{t, static_cast<int64_t>(t % 3), {0, 5000}, {0, 64}}};
    problem.values[t] = at::rand({5000, 64}, at::kDouble);
  }
  run_ranks(3, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
    const Tensors tables = filled(layer, problem.values);
    std::mt19937 random(static_cast<uint32_t>(world.rank()));
    for (int64_t step = 0; step < 4; ++step) {
      DistributedEmbedding::Inputs inputs;
      int64_t n_asked = 0;  // of other ranks
      for (size_t t = 0; t < problem.configs.size(); ++t) {
        std::vector<int64_t> ids(1500);
        for (int64_t& id : ids) id = static_cast<int64_t>(random() % 5000u);
        const at::Tensor given = at::tensor(ids);
        inputs.push_back(FeatureInput{given, {}, {}, {}});
        if (static_cast<int64_t>(t % 3) != world.rank()) n_asked += std::get<0>(at::_unique(given)).numel();
      }
      const CommTrace forward;
      const Tensors results = layer.start(inputs, tables)->wait();
      const CommTrace both;
      Tensors grads;
      for (const at::Tensor& result : results) grads.push_back(at::ones_like(result));
      torch::autograd::backward(results, grads);
      EXPECT_EQ(both.bytes_sent(), n_asked * 64 * 8);
      if (step == 0) continue;  // the messages' lengths are not known yet
      const auto bytes = static_cast<double>(forward.bytes_received() - both.bytes_received());
      const auto of_rows = static_cast<double>(n_asked * 64 * 8), of_ids = static_cast<double>(n_asked * 4);
      EXPECT_NEAR(bytes / (of_rows + of_ids), 1, 0.01) << "step " << step;
    }
  });
}

TEST(DistributedEmbeddingTest, StepsOfAnySizeFollowEachOther) {
  const EmbeddingProblem problem = round_robin_problem(2, 2);
  run_ranks(2, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
    const Tensors tables = filled(layer, problem.values);
    for (const int64_t n : {3, 0, 40, 41, 7, 50, 1}) {
      const at::Tensor ids = at::arange(n).add(world.rank()).remainder(50);
      const Tensors results =
          layer.start({FeatureInput{ids, {}, {}, {}}, FeatureInput{ids.flip(0), {}, {}, {}}}, tables)->wait();
      EXPECT_TRUE(results[0].equal(problem.values[0].index_select(0, ids))) << n;
      EXPECT_TRUE(results[1].equal(problem.values[1].index_select(0, ids.flip(0)))) << n;
    }
  });
}

TEST(DistributedEmbeddingTest, LookupsMayBeStartedAheadOfEachOther) {
  const EmbeddingProblem problem = round_robin_problem(2, 2);
  run_ranks(2, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
    const Tensors tables = filled(layer, problem.values);
    const auto ids_of = [&](int64_t n) { return at::arange(n).mul(7).add(world.rank()).remainder(50); };
    const auto start_of = [&](int64_t n) {
      return layer.start({FeatureInput{ids_of(n), {}, {}, {}}, FeatureInput{ids_of(n + 1), {}, {}, {}}}, tables);
    };
    auto next = start_of(3);
    for (int64_t n = 4; n < 20; n += 5) {
      const auto now = std::exchange(next, start_of(n));
      now->fetch();
      const Tensors results = now->wait();
      const int64_t before = n == 4 ? 3 : n - 5;
      EXPECT_TRUE(results[0].equal(problem.values[0].index_select(0, ids_of(before)))) << n;
    }
    next->wait();
  });
}

TEST(DistributedEmbeddingTest, D10FusedOptimizersUpdateTheTables) {
  const EmbeddingProblem problem = random_problem(7, 3, 6);
  const DenseAnswer dense = dense_answer(problem, true);
  run_ranks(3, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
    const Tensors tables = filled(layer, problem.values);
    std::vector<std::shared_ptr<RowOptimizer>> optimizers;
    for (const at::Tensor& table : tables) {
      optimizers.push_back(std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.lr = 0.5}));
      fuse_optimizer(table, optimizers.back());
    }
    const auto rank = static_cast<size_t>(world.rank());
    Tensors weights;
    const Tensors results = layer.start(given(with_leaves(problem.inputs[rank], weights)), tables)->wait();
    torch::autograd::backward(results, problem.grads[rank]);
    for (size_t t = 0; t < tables.size(); ++t) {
      EXPECT_FALSE(tables[t].grad().defined());
      expect_equal(full_tensor(tables[t].detach()), problem.values[t] - 0.5 * dense.table_grads[t],
                   fmt::format("table {}", t));
    }
  });
}

TEST(DistributedEmbeddingTest, SparseGradientsAreDenseOnes) {
  const EmbeddingProblem problem = random_problem(11, 2, 5);
  const DenseAnswer dense = dense_answer(problem, true);
  run_ranks(2, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {.is_sparse = true});
    const Tensors tables = filled(layer, problem.values);
    const auto rank = static_cast<size_t>(world.rank());
    Tensors weights;
    const Tensors results = layer.start(given(with_leaves(problem.inputs[rank], weights)), tables)->wait();
    torch::autograd::backward(results, problem.grads[rank]);
    for (size_t t = 0; t < tables.size(); ++t) {
      ASSERT_TRUE(tables[t].grad().is_sparse());
      expect_equal(full_tensor(tables[t].grad()).to_dense(), dense.table_grads[t], fmt::format("table {}", t));
    }
  });
}

}  // namespace
}  // namespace shardwise::distributed_embedding_test
