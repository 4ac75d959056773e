// Many tables behind one layer against dense lookups: values, gradients, messages, bytes, wrong inputs.
#include "wrappers/distributed_embedding/distributed_embedding.h"

#include "ops/embedding/row_optimizer.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/comm_trace.h"
#include "tests/support/either_world.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

namespace shardwise::distributed_embedding_test {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Tables, where their slices are, features and each rank's inputs: all from a seed, the same on every rank.
struct Problem {
  std::vector<TableConfig> configs;
  std::vector<TablePlan> plans;
  std::vector<Feature> features;
  Tensors values;                                  // of tables
  std::vector<std::vector<FeatureInput>> inputs;  // by rank and feature
  std::vector<Tensors> grads;                      // by rank and feature: of the results
};

class Maker {
 public:
  Maker(uint32_t seed, int64_t n_ranks, at::ScalarType dtype) : random_(seed), n_ranks_(n_ranks), dtype_(dtype) {}

  Problem problem(int64_t n_tables) {
    Problem result;
    for (int64_t t = 0; t < n_tables; ++t) add_table(result);
    for (int64_t rank = 0; rank < n_ranks_; ++rank) add_inputs(result);
    return result;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(n)); }
  at::Tensor numbers(std::vector<int64_t> sizes) {
    at::Tensor result = at::empty(sizes, dtype_);
    at::Tensor flat = result.view(-1);
    for (int64_t i = 0; i < flat.numel(); ++i) flat[i] = static_cast<double>(below(33) - 16) / 16;
    return result;
  }

  /// [0, n) in `parts` parts, perhaps empty ones.
  std::vector<Interval> parts_of(int64_t n, int64_t parts) {
    std::vector<int64_t> bounds{0, n};
    for (int64_t i = 1; i < parts; ++i) bounds.push_back(below(n + 1));
    std::ranges::sort(bounds);
    std::vector<Interval> result;
    for (int64_t i = 0; i < parts; ++i) result.push_back({bounds[i], bounds[i + 1]});
    return result;
  }

  void add_table(Problem& problem) {
    const auto t = problem.configs.size();
    TableConfig config;
    config.name = fmt::format("t{}", t);
    config.n_rows = 1 + below(30);
    config.n_columns = 1 + below(6);
    config.dtype = dtype_ == at::kDouble ? "float64" : "float32";
    TablePlan plan;
    const int64_t kind = below(5);
    if (kind == 0) {
      plan.treatment = Treatment::kReplicated;
    } else if (kind == 1) {  // rows over all ranks
      plan.treatment = Treatment::kRowParallel;
      int64_t rank = 0;
      for (const Interval& rows : parts_of(config.n_rows, n_ranks_)) {
        if (rows.length() > 0) plan.slices.push_back({t, rank, rows, {0, config.n_columns}});
        ++rank;
      }
    } else if (kind == 2) {  // columns, two slices perhaps on one rank
      plan.treatment = Treatment::kTableParallel;
      for (const Interval& columns : parts_of(config.n_columns, 1 + below(3)))
        if (columns.length() > 0) plan.slices.push_back({t, below(n_ranks_), {0, config.n_rows}, columns});
    } else if (kind == 3) {  // a grid
      plan.treatment = Treatment::kTableParallel;
      const auto columns = parts_of(config.n_columns, 2);
      for (const Interval& rows : parts_of(config.n_rows, 2))
        for (const Interval& each : columns)
          if (rows.length() > 0 && each.length() > 0) plan.slices.push_back({t, below(n_ranks_), rows, each});
    } else {
      plan.treatment = Treatment::kTableParallel;
      plan.slices.push_back({t, below(n_ranks_), {0, config.n_rows}, {0, config.n_columns}});
    }
    const int64_t n_features = below(4) == 0 ? 2 : 1;
    for (int64_t f = 0; f < n_features; ++f)
      problem.features.push_back({fmt::format("f{}", problem.features.size()), t, static_cast<Combiner>(below(4))});
    problem.values.push_back(numbers({config.n_rows, config.n_columns}));
    problem.configs.push_back(std::move(config));
    problem.plans.push_back(std::move(plan));
  }

  void add_inputs(Problem& problem) {
    problem.inputs.emplace_back();
    problem.grads.emplace_back();
    const int64_t n_samples = below(7);  // batches differ between ranks
    for (const Feature& feature : problem.features) {
      const int64_t n_rows = problem.configs[feature.table].n_rows, kind = below(3);
      FeatureInput input;
      at::Tensor lengths = at::empty({n_samples}, at::kLong);
      int64_t n = 0;
      for (int64_t i = 0; i < n_samples; ++i) {
        lengths[i] = kind == 0 ? 1 : kind == 1 ? 3 : below(5);
        n += lengths[i].item<int64_t>();
      }
      input.ids = at::empty({n}, below(2) == 0 ? at::kLong : at::kInt);
      for (int64_t i = 0; i < n; ++i) input.ids[i] = below(n_rows);
      if (kind == 1) input.ids = input.ids.view({n_samples, 3});
      if (kind == 2) (below(2) == 0 ? input.lengths : input.offsets) = lengths;
      if (input.offsets) input.offsets = at::cat({at::zeros({1}, at::kLong), lengths.cumsum(0)});
      const bool may_weigh = feature.combiner == Combiner::kSum || feature.combiner == Combiner::kMean;
      if (may_weigh && below(2) == 0) input.weights = numbers(input.ids.sizes().vec());
      auto sizes = feature.combiner == Combiner::kNone ? input.ids.sizes().vec() : std::vector<int64_t>{n_samples};
      sizes.push_back(problem.configs[feature.table].n_columns);
      problem.grads.back().push_back(numbers(sizes));
      problem.inputs.back().push_back(std::move(input));
    }
  }

  std::mt19937 random_;
  int64_t n_ranks_;
  at::ScalarType dtype_;
};

/// One feature's result, computed sample by sample.
at::Tensor dense_result(const at::Tensor& table, const Feature& feature, const FeatureInput& input) {
  const at::Tensor ids = input.ids.to(at::kLong);
  if (feature.combiner == Combiner::kNone) return at::embedding(table, ids);
  std::vector<at::Tensor> samples;
  const at::Tensor flat = ids.reshape(-1);
  const at::Tensor weights = input.weights ? input.weights->reshape(-1) : at::Tensor();
  int64_t first = 0;
  const int64_t n_samples = input.offsets   ? input.offsets->numel() - 1
                            : input.lengths ? input.lengths->numel()
                                            : ids.size(0);
  for (int64_t i = 0; i < n_samples; ++i) {
    const int64_t length = input.offsets   ? (*input.offsets)[i + 1].item<int64_t>() - first
                           : input.lengths ? (*input.lengths)[i].item<int64_t>()
                           : ids.dim() == 2 ? ids.size(1)
                                            : 1;
    at::Tensor rows = table.index_select(0, flat.narrow(0, first, length));
    if (weights.defined()) rows = rows * weights.narrow(0, first, length).unsqueeze(1);
    first += length;
    if (length == 0)
      samples.push_back(table.sum(0) * 0);
    else
      samples.push_back(feature.combiner == Combiner::kSum    ? rows.sum(0)
                        : feature.combiner == Combiner::kMean ? rows.mean(0)
                                                              : std::get<0>(rows.max(0)));
  }
  return samples.empty() ? table.narrow(0, 0, 0) * 1 : at::stack(samples);
}

Tensors leaves(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone().set_requires_grad(true));
  return result;
}

/// Copies of the inputs, and their weights as leaves.
std::vector<FeatureInput> with_leaves(std::vector<FeatureInput> inputs, Tensors& weights) {
  for (FeatureInput& input : inputs) {
    weights.emplace_back();
    if (!input.weights) continue;
    weights.back() = input.weights->clone().set_requires_grad(true);
    input.weights = weights.back();
  }
  return inputs;
}

DistributedEmbedding::Inputs given(const std::vector<FeatureInput>& inputs) { return {inputs.begin(), inputs.end()}; }

struct DenseAnswer {
  std::vector<Tensors> results, weight_grads;  // by rank and feature
  Tensors table_grads;
};

DenseAnswer dense_answer(const Problem& problem, bool mean_gradients) {
  DenseAnswer answer;
  const Tensors tables = leaves(problem.values);
  for (size_t rank = 0; rank < problem.inputs.size(); ++rank) {
    Tensors weights, results;
    const auto inputs = with_leaves(problem.inputs[rank], weights);
    for (size_t f = 0; f < problem.features.size(); ++f)
      results.push_back(dense_result(tables[problem.features[f].table], problem.features[f], inputs[f]));
    torch::autograd::backward(results, problem.grads[rank]);
    answer.results.push_back(results);
    answer.weight_grads.emplace_back();
    for (const at::Tensor& each : weights)
      answer.weight_grads.back().push_back(!each.defined() ? each : each.grad().defined() ? each.grad() : at::zeros_like(each));
  }
  for (const at::Tensor& table : tables)
    answer.table_grads.push_back(mean_gradients ? table.grad() / static_cast<int64_t>(problem.inputs.size())
                                                : table.grad());
  return answer;
}

/// The layer's tables with these values, as leaves.
Tensors filled(const DistributedEmbedding& layer, const Tensors& values) {
  Tensors tables = layer.tables();
  for (size_t t = 0; t < tables.size(); ++t)
    tables[t].copy_(distribute_tensor(values[t], layer.lanes().mesh, {Placement::replicate()}));
  for (at::Tensor& table : tables) table.set_requires_grad(true);
  return tables;
}

MeshPtr mesh_of(World& world) {
  std::vector<int64_t> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return DeviceMesh::create(World::current(), c10::kCPU, {{world.size()}, ranks});
}

void expect_equal(const at::Tensor& own, const at::Tensor& dense, const std::string& what) {
  EXPECT_EQ(own.sizes(), dense.sizes()) << what;
  EXPECT_TRUE(own.sizes() == dense.sizes() && own.allclose(dense, 1e-12, 1e-12)) << what << "\n" << own << dense;
}

void expect_dense(uint32_t seed, int64_t n_ranks, int64_t n_tables, bool mean_gradients) {
  const Problem problem = Maker(seed, n_ranks, at::kDouble).problem(n_tables);
  const DenseAnswer dense = dense_answer(problem, mean_gradients);
  run_ranks(n_ranks, [&](World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features,
                               {.mean_gradients = mean_gradients});
    const Tensors tables = filled(layer, problem.values);
    for (int64_t step = 0; step < 2; ++step) {  // the second knows the messages' lengths
      Tensors weights;
      const auto inputs = with_leaves(problem.inputs[rank], weights);
      const Tensors results = layer.start(given(inputs))->wait(tables);
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
  for (uint32_t seed = 0; seed < 60; ++seed) expect_dense(seed, 1 + seed % 4, 1 + seed % 7, seed % 2 == 0);
}

/// Tables [50, 4] on rank t % n_ranks, one feature each.
Problem round_robin(int64_t n_tables, int64_t n_ranks) {
  Problem problem;
  for (int64_t t = 0; t < n_tables; ++t) {
    TableConfig config;
    config.name = fmt::format("t{}", t);
    config.n_rows = 50;
    config.n_columns = 4;
    config.dtype = "float64";
    problem.configs.push_back(config);
    const auto at = static_cast<size_t>(t);
    problem.plans.push_back({Treatment::kTableParallel, {{at, t % n_ranks, {0, 50}, {0, 4}}}, ""});
    problem.features.push_back({fmt::format("f{}", t), at, Combiner::kSum});
    problem.values.push_back(at::arange(200, at::kDouble).view({50, 4}) + t);
  }
  return problem;
}

/// For each feature the ids 0, 1, 1, 2, 2, 2, ... of 21 samples, shifted by rank.
std::vector<FeatureInput> repeated_ids(const Problem& problem, int64_t rank) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 6; ++id) ids.insert(ids.end(), id + 1, id + rank);
  return std::vector<FeatureInput>(problem.features.size(), FeatureInput{at::tensor(ids), {}, {}, {}});
}

TEST(DistributedEmbeddingTest, TwoExchangesForwardAndOneBackwardWhateverTheNumberOfTables) {
  for (const int64_t n_tables : {1, 3, 26}) {
    const Problem problem = round_robin(n_tables, 3);
    run_ranks(3, [&](World& world) {
      DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
      const Tensors tables = filled(layer, problem.values);
      const auto inputs = repeated_ids(problem, world.rank());
      layer.start(given(inputs))->wait(tables);
      const CommTrace forward;
      const Tensors results = layer.start(given(inputs))->wait(tables);
      EXPECT_LE(forward.total_count(), 2) << n_tables << " tables";
      Tensors grads;
      for (const at::Tensor& result : results) grads.push_back(at::ones_like(result));
      const CommTrace backward;
      torch::autograd::backward(results, grads);
      EXPECT_LE(backward.total_count(), 1) << n_tables << " tables";
      // Six unique rows of each table, of 4 doubles, to and from the two ranks that are not its owner.
      int64_t n_asked = 0, n_given = 0;
      for (int64_t t = 0; t < n_tables; ++t) (t % 3 == world.rank() ? n_given : n_asked) += t % 3 == world.rank() ? 12 : 6;
      EXPECT_EQ(backward.bytes_sent(), n_asked * 32);
      EXPECT_EQ(backward.bytes_received(), n_given * 32);
    });
  }
}

TEST(DistributedEmbeddingTest, StepsOfAnySizeFollowEachOther) {
  const Problem problem = round_robin(2, 2);
  run_ranks(2, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
    const Tensors tables = filled(layer, problem.values);
    for (const int64_t n : {3, 0, 40, 41, 7, 50, 1}) {
      const at::Tensor ids = at::arange(n).add(world.rank()).remainder(50);
      const Tensors results = layer.start({FeatureInput{ids, {}, {}, {}}, FeatureInput{ids.flip(0), {}, {}, {}}})->wait(tables);
      EXPECT_TRUE(results[0].equal(problem.values[0].index_select(0, ids))) << n;
      EXPECT_TRUE(results[1].equal(problem.values[1].index_select(0, ids.flip(0)))) << n;
    }
  });
}

TEST(DistributedEmbeddingTest, LookupsMayBeStartedAheadOfEachOther) {
  const Problem problem = round_robin(2, 2);
  run_ranks(2, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
    const Tensors tables = filled(layer, problem.values);
    const auto ids_of = [&](int64_t n) { return at::arange(n).mul(7).add(world.rank()).remainder(50); };
    const auto start_of = [&](int64_t n) {
      return layer.start({FeatureInput{ids_of(n), {}, {}, {}}, FeatureInput{ids_of(n + 1), {}, {}, {}}});
    };
    auto next = start_of(3);
    for (int64_t n = 4; n < 20; n += 5) {
      const auto now = std::exchange(next, start_of(n));
      now->fetch();
      const Tensors results = now->wait(tables);
      const int64_t before = n == 4 ? 3 : n - 5;
      EXPECT_TRUE(results[0].equal(problem.values[0].index_select(0, ids_of(before)))) << n;
    }
    next->wait(tables);
  });
}

TEST(DistributedEmbeddingTest, D11WrongInputsAreTheSameErrorOnAllRanks) {
  const Problem problem = round_robin(3, 3);
  const at::Tensor good = at::arange(4), outside = at::tensor({1, 50, 2}, at::kLong);
  const at::Tensor short_lengths = at::tensor({1, 2}, at::kLong);
  const std::vector<std::pair<FeatureInput, std::string>> wrong{
      {{outside, {}, {}, {}}, "[DistributedEmbedding] feature f1 has id 50: table t1 has 50 rows"},
      {{good, {}, short_lengths, {}}, "the lengths of feature f1 add up to 3, it has 4 ids"},
      {{good, short_lengths, {}, {}}, "the offsets of feature f1 go from 1 to 2, it has 4 ids"},
      {{good, short_lengths, short_lengths, {}}, "feature f1 has offsets and lengths"},
      {{good.to(at::kFloat), {}, {}, {}}, "the ids of feature f1 are Float"},
      {{good.view({2, 2, 1}), {}, {}, {}}, "the ids of feature f1 have shape [2, 2, 1]"},
      {{good, {}, {}, at::ones({4})}, "the weights of feature f1 are Float, its table Double"},
      {{good, {}, {}, at::ones({3}, at::kDouble)}, "the weights of feature f1 have shape [3], its ids [4]"}};
  for (const auto& [input, words] : wrong)
    run_ranks(3, [&](World& world) {
      DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
      const Tensors tables = filled(layer, problem.values);
      const FeatureInput fine{good, {}, {}, {}};
      for (int64_t step = 0; step < 2; ++step) {
        const auto lookup = layer.start({fine, world.rank() == 1 ? input : fine, fine});
        try {
          lookup->wait(tables);
          ADD_FAILURE() << "no error: " << words;
        } catch (const c10::Error& error) {
          expect_error(words, error.what_without_backtrace());
        }
        const Tensors results = layer.start({fine, fine, fine})->wait(tables);  // and the layer goes on
        EXPECT_TRUE(results[2].equal(problem.values[2].narrow(0, 0, 4)));
      }
    });
}

TEST(DistributedEmbeddingTest, TablesWithoutInputAndForeignTablesAreErrors) {
  Problem problem = round_robin(2, 1);
  run_ranks(1, [&](World& world) {
    const MeshPtr mesh = mesh_of(world);
    const auto error_of = [&](const auto& body) {
      try {
        body();
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    expect_error("table t1 has no input", error_of([&] {
                   DistributedEmbedding(problem.configs, problem.plans, mesh, {problem.features[0]}, {});
                 }));
    DistributedEmbedding layer(problem.configs, problem.plans, mesh, problem.features, {});
    Tensors tables = filled(layer, problem.values);
    tables[1] = tables[1].detach().clone();
    const FeatureInput fine{at::arange(4), {}, {}, {}};
    expect_error("the parameter of table t1 is not the layer's own",
                 error_of([&] { layer.start({fine, fine})->wait(tables); }));
    expect_error("got 1 inputs for 2 features", error_of([&] { layer.start({fine})->wait(layer.tables()); }));
  });
}

TEST(DistributedEmbeddingTest, D10FusedOptimizersUpdateTheTables) {
  const Problem problem = Maker(7, 3, at::kDouble).problem(6);
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
    const Tensors results = layer.start(given(with_leaves(problem.inputs[rank], weights)))->wait(tables);
    torch::autograd::backward(results, problem.grads[rank]);
    for (size_t t = 0; t < tables.size(); ++t) {
      EXPECT_FALSE(tables[t].grad().defined());
      expect_equal(full_tensor(tables[t].detach()), problem.values[t] - 0.5 * dense.table_grads[t],
                   fmt::format("table {}", t));
    }
  });
}

/// The inputs of one feature of all ranks, one after the other: fixed numbers of ids, without weights.
FeatureInput of_all_samples(const Problem& problem, size_t f) {
  Tensors ids;
  for (const auto& inputs : problem.inputs) ids.push_back(inputs[f].ids.to(at::kLong));
  return {at::cat(ids), {}, {}, {}};
}

/// A problem whose ranks have samples as start_owner_lookup() deals them: `n_samples` in all.
Problem dealt_samples(uint32_t seed, int64_t n_ranks, int64_t n_samples) {
  Problem problem = Maker(seed, n_ranks, at::kDouble).problem(5);
  std::mt19937 random(seed);
  for (size_t t = 0; t < problem.plans.size(); ++t) {  // whole rows only
    const bool has_rows = std::ranges::any_of(problem.plans[t].slices, [&](const TableSlice& slice) {
      return slice.rows.length() < problem.configs[t].n_rows;
    });
    if (has_rows)
      problem.plans[t] = {Treatment::kTableParallel,
                          {{t, static_cast<int64_t>(random() % static_cast<uint32_t>(n_ranks)), {0, problem.configs[t].n_rows},
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

TEST(DistributedEmbeddingTest, D7IdsThatComeByTableAreDense) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    const int64_t n_ranks = 1 + seed % 4, n_samples = seed % 3 == 0 ? 2 : 5 + seed % 6;
    const Problem problem = dealt_samples(seed, n_ranks, n_samples);
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
      const Tensors results = layer.start(inputs)->wait(tables);
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

TEST(DistributedEmbeddingTest, D7WrongIdsByTableAreTheSameErrorOnAllRanks) {
  const Problem problem = round_robin(3, 3);
  const FeatureInput good{at::arange(6), {}, {}, {}};
  const std::vector<std::pair<std::optional<FeatureInput>, std::string>> wrong{
      {std::nullopt, "feature f1 has no ids on rank 1, which has columns of table t1"},
      {FeatureInput{at::arange(7), {}, {}, {}}, "rank 1 gives 7 samples, those before it 6"},
      {FeatureInput{at::full({6}, 50), {}, {}, {}}, "feature f1 has id 50"}};
  for (const auto& [input, words] : wrong)
    run_ranks(3, [&](World& world) {
      DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {.dp_input = false});
      const Tensors tables = filled(layer, problem.values);
      DistributedEmbedding::Inputs inputs(3);
      inputs[static_cast<size_t>(world.rank())] = world.rank() == 1 ? input : good;
      try {
        layer.start(inputs)->wait(tables);
        ADD_FAILURE() << "no error: " << words;
      } catch (const c10::Error& error) {
        expect_error(words, error.what_without_backtrace());
      }
    });
}

TEST(DistributedEmbeddingTest, SparseGradientsAreDenseOnes) {
  const Problem problem = Maker(11, 2, at::kDouble).problem(5);
  const DenseAnswer dense = dense_answer(problem, true);
  run_ranks(2, [&](World& world) {
    DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {.is_sparse = true});
    const Tensors tables = filled(layer, problem.values);
    const auto rank = static_cast<size_t>(world.rank());
    Tensors weights;
    const Tensors results = layer.start(given(with_leaves(problem.inputs[rank], weights)))->wait(tables);
    torch::autograd::backward(results, problem.grads[rank]);
    for (size_t t = 0; t < tables.size(); ++t) {
      ASSERT_TRUE(tables[t].grad().is_sparse());
      expect_equal(full_tensor(tables[t].grad()).to_dense(), dense.table_grads[t], fmt::format("table {}", t));
    }
  });
}

}  // namespace
}  // namespace shardwise::distributed_embedding_test
