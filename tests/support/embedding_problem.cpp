#include "tests/support/embedding_problem.h"

#include "runtime/api/dtensor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

namespace shardwise {
namespace {

class Maker {
 public:
  Maker(uint32_t seed, int64_t n_ranks, at::ScalarType dtype) : random_(seed), n_ranks_(n_ranks), dtype_(dtype) {}

  EmbeddingProblem problem(int64_t n_tables) {
    EmbeddingProblem result;
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

  void add_table(EmbeddingProblem& problem) {
    const auto t = problem.configs.size();
    TableConfig config;
    config.name = fmt::format("t{}", t);
    config.n_rows = 1 + below(30);
    config.n_columns = 1 + below(6);
    config.dtype = dtype_ == at::kDouble ? "float64" : "float32";
    TablePlan plan;
    std::vector<TableSlice> slices;
    const int64_t kind = below(5);
    if (kind == 0) {
      plan.treatment = Treatment::kReplicated;
    } else if (kind == 1) {  // rows over all ranks
      plan.treatment = Treatment::kRowParallel;
      int64_t rank = 0;
      for (const Interval& rows : parts_of(config.n_rows, n_ranks_)) {
        if (rows.length() > 0) slices.push_back({t, rank, rows, {0, config.n_columns}});
        ++rank;
      }
    } else if (kind == 2) {  // columns, two slices perhaps on one rank
      plan.treatment = Treatment::kTableParallel;
      for (const Interval& columns : parts_of(config.n_columns, 1 + below(3)))
        if (columns.length() > 0) slices.push_back({t, below(n_ranks_), {0, config.n_rows}, columns});
    } else if (kind == 3) {  // a grid
      plan.treatment = Treatment::kTableParallel;
      const auto columns = parts_of(config.n_columns, 2);
      for (const Interval& rows : parts_of(config.n_rows, 2))
        for (const Interval& each : columns)
          if (rows.length() > 0 && each.length() > 0) slices.push_back({t, below(n_ranks_), rows, each});
    } else {
      plan.treatment = Treatment::kTableParallel;
      slices.push_back({t, below(n_ranks_), {0, config.n_rows}, {0, config.n_columns}});
    }
    const int64_t n_features = below(4) == 0 ? 2 : 1;
    for (int64_t f = 0; f < n_features; ++f)
      problem.features.push_back({fmt::format("f{}", problem.features.size()), t, static_cast<Combiner>(below(4))});
    problem.values.push_back(numbers({config.n_rows, config.n_columns}));
    problem.configs.push_back(std::move(config));
    plan.slices = std::move(slices);
    problem.plans.push_back(std::move(plan));
  }

  void add_inputs(EmbeddingProblem& problem) {
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
    const int64_t length = input.offsets    ? (*input.offsets)[i + 1].item<int64_t>() - first
                           : input.lengths  ? (*input.lengths)[i].item<int64_t>()
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

}  // namespace

EmbeddingProblem random_problem(uint32_t seed, int64_t n_ranks, int64_t n_tables) {
  return Maker(seed, n_ranks, at::kDouble).problem(n_tables);
}

EmbeddingProblem round_robin_problem(int64_t n_tables, int64_t n_ranks) {
  EmbeddingProblem problem;
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

DenseAnswer dense_answer(const EmbeddingProblem& problem, bool mean_gradients) {
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
      answer.weight_grads.back().push_back(!each.defined()         ? each
                                           : each.grad().defined() ? each.grad()
                                                                   : at::zeros_like(each));
  }
  for (const at::Tensor& table : tables)
    answer.table_grads.push_back(mean_gradients ? table.grad() / static_cast<int64_t>(problem.inputs.size())
                                                : table.grad());
  return answer;
}

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

}  // namespace shardwise
