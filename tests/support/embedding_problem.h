// tests/support/embedding_problem.h: many tables, where their slices are, features and each rank's inputs, and the dense answer.
#pragma once

#include "tests/support/ranks.h"
#include "wrappers/distributed_embedding/distributed_embedding.h"

#include <string>
#include <vector>

namespace shardwise {

using Tensors = std::vector<at::Tensor>;

/// The same on every rank.
struct EmbeddingProblem {
  std::vector<TableConfig> configs;
  std::vector<TablePlan> plans;
  std::vector<Feature> features;
  Tensors values;                                 // of tables
  std::vector<std::vector<FeatureInput>> inputs;  // by rank and feature
  std::vector<Tensors> grads;                     // by rank and feature: of the results
};

/// From a seed: float64 tables of all treatments, perhaps with two features, which are dense, ragged or weighted; batches that differ
/// between ranks, perhaps empty.
EmbeddingProblem random_problem(uint32_t seed, int64_t n_ranks, int64_t n_tables);
/// Tables [50, 4] of float64 on rank t % n_ranks, one feature each, without inputs.
EmbeddingProblem round_robin_problem(int64_t n_tables, int64_t n_ranks);

struct DenseAnswer {
  std::vector<Tensors> results, weight_grads;  // by rank and feature
  Tensors table_grads;
};

/// Computed sample by sample.
DenseAnswer dense_answer(const EmbeddingProblem& problem, bool mean_gradients);

/// Copies of the inputs, and their weights as leaves, undefined where there are none.
std::vector<FeatureInput> with_leaves(std::vector<FeatureInput> inputs, Tensors& weights);
DistributedEmbedding::Inputs given(const std::vector<FeatureInput>& inputs);

/// The layer's tables with these values, as leaves.
Tensors filled(const DistributedEmbedding& layer, const Tensors& values);
/// All ranks.
MeshPtr mesh_of(World& world);

/// To 1e-12.
void expect_equal(const at::Tensor& own, const at::Tensor& dense, const std::string& what);

}  // namespace shardwise
