// Ids that come by table against dense lookups.
#include "wrappers/distributed_embedding/distributed_embedding.h"

#include "runtime/api/dtensor.h"
#include "runtime/comm/events.h"
#include "tests/support/embedding_problem.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

namespace shardwise::owner_lookup_test {
namespace {

/// The inputs of one feature of all ranks, one after the other: fixed numbers of ids, without weights.
FeatureInput of_all_samples(const EmbeddingProblem& problem, size_t f) {
  Tensors ids;
  for (const auto& inputs : problem.inputs) ids.push_back(inputs[f].ids.to(at::kLong));
  return {at::cat(ids), {}, {}, {}};
}

/// A problem whose ranks have samples as start_owner_lookup() deals them: `n_samples` in all.
EmbeddingProblem dealt_samples(uint32_t seed, int64_t n_ranks, int64_t n_samples) {
  EmbeddingProblem problem = random_problem(seed, n_ranks, 5);
  std::mt19937 random(seed);
  for (size_t t = 0; t < problem.plans.size(); ++t) {  // whole rows only
    bool has_rows = false;
    for (const TableSlice& slice : problem.plans[t].slices) has_rows |= slice.rows.length() < problem.configs[t].n_rows;
    if (has_rows)
      problem.plans[t] = {Treatment::kTableParallel,
                          {{t,
                            static_cast<int64_t>(random() % static_cast<uint32_t>(n_ranks)),
                            {0, problem.configs[t].n_rows},
                            {0, problem.configs[t].n_columns}}},
                          ""};
  }
  std::vector<int64_t> per_sample;
  for (size_t f = 0; f < problem.features.size(); ++f) per_sample.push_back(random() % 4);  // 0: ids [samples]
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    const auto at_rank = static_cast<size_t>(rank);
    const int64_t n = n_samples / n_ranks + (rank < n_samples % n_ranks ? 1 : 0);
    for (size_t f = 0; f < problem.features.size(); ++f) {
      std::vector<int64_t> sizes{n};
      if (per_sample[f] > 0) sizes.push_back(per_sample[f]);
      const TableConfig& config = problem.configs[problem.features[f].table];
      at::Tensor ids = at::empty(sizes, at::kLong);
      for (int64_t i = 0; i < ids.numel(); ++i)
        ids.view(-1)[i] = static_cast<int64_t>(random() % static_cast<uint32_t>(config.n_rows));
      problem.inputs[at_rank][f] = {ids, {}, {}, {}};
      if (problem.features[f].combiner != Combiner::kNone) sizes.resize(1);
      sizes.push_back(config.n_columns);
      problem.grads[at_rank][f] = (at::rand(sizes, at::kDouble) * 16).round() / 16;
    }
  }
  return problem;
}

TEST(OwnerLookupTest, D7IdsThatComeByTableAreDense) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    const int64_t n_ranks = 1 + seed % 4, n_samples = seed % 3 == 0 ? 2 : 5 + seed % 6;
    const EmbeddingProblem problem = dealt_samples(seed, n_ranks, n_samples);
    const DenseAnswer dense = dense_answer(problem, true);
    run_ranks(n_ranks, [&](World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {.dp_input = false});
      const Tensors tables = filled(layer, problem.values);
      DistributedEmbedding::Inputs inputs;
      for (size_t f = 0; f < problem.features.size(); ++f) {
        const LayerTable& table = layer.lanes().tables[problem.features[f].table];
        inputs.emplace_back();
        if (table.is_replicated)
          inputs.back() = problem.inputs[rank][f];
        else if (!layer.pieces(problem.features[f].table).empty())
          inputs.back() = of_all_samples(problem, f);
      }
      const CommTrace trace;
      const Tensors results = layer.start(inputs, tables)->wait();
      EXPECT_LE(trace.total_count(), 2);
      torch::autograd::backward(results, problem.grads[rank]);
      const std::string where = fmt::format("seed {}, rank {} of {}", seed, rank, n_ranks);
      for (size_t f = 0; f < results.size(); ++f)
        expect_equal(results[f], dense.results[rank][f], fmt::format("{}, result {}", where, f));
      for (size_t t = 0; t < tables.size(); ++t)
        expect_equal(full_tensor(tables[t].grad()), dense.table_grads[t], fmt::format("{}, table {}", where, t));
    });
  }
}

TEST(OwnerLookupTest, D7WrongIdsByTableAreTheSameErrorOnAllRanks) {
  const EmbeddingProblem problem = round_robin_problem(3, 3);
  const FeatureInput good{at::arange(6), {}, {}, {}};
  const std::vector<std::pair<std::optional<FeatureInput>, std::string>> wrong{
      {std::nullopt, "feature f1 has no ids on rank 1, which has columns of table t1"},
      {FeatureInput{at::arange(7), {}, {}, {}}, "rank 1 gives 7 samples, but the ranks before it give 6"},
      {FeatureInput{at::full({6}, 50), {}, {}, {}}, "feature f1 has id 50"}};
  for (const auto& [input, words] : wrong)
    run_ranks(3, [&](World& world) {
      DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {.dp_input = false});
      const Tensors tables = filled(layer, problem.values);
      DistributedEmbedding::Inputs inputs(3);
      inputs[static_cast<size_t>(world.rank())] = world.rank() == 1 ? input : good;
      try {
        layer.start(inputs, tables)->wait();
        ADD_FAILURE() << "no error: " << words;
      } catch (const c10::Error& error) {
        expect_error(words, error.what_without_backtrace());
      }
    });
}

}  // namespace
}  // namespace shardwise::owner_lookup_test
