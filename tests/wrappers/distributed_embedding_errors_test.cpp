// Wrong inputs of a layer of many tables: the same error on all ranks, and the layer goes on.
#include "wrappers/distributed_embedding/distributed_embedding.h"

#include "runtime/api/dtensor.h"
#include "tests/support/embedding_problem.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::distributed_embedding_errors_test {
namespace {

TEST(DistributedEmbeddingErrorsTest, D11WrongInputsAreTheSameErrorOnAllRanks) {
  const EmbeddingProblem problem = round_robin_problem(3, 3);
  const at::Tensor good = at::arange(4), outside = at::tensor({1, 50, 2}, at::kLong);
  const at::Tensor short_lengths = at::tensor({1, 2}, at::kLong);
  const std::vector<std::pair<FeatureInput, std::string>> wrong{
      {{outside, {}, {}, {}}, "[DistributedEmbedding] feature f1 has id 50: table t1 has 50 rows"},
      {{good, {}, short_lengths, {}}, "the lengths of feature f1 add up to 3, but it has 4 ids"},
      {{good, short_lengths, {}, {}}, "the offsets of feature f1 go from 1 to 2, but it has 4 ids"},
      {{good, short_lengths, short_lengths, {}}, "feature f1 has offsets and lengths"},
      {{good.to(at::kFloat), {}, {}, {}}, "the ids of feature f1 are Float"},
      {{good.view({2, 2, 1}), {}, {}, {}}, "the ids of feature f1 have shape [2, 2, 1]"},
      {{good, {}, {}, at::ones({4})}, "the weights of feature f1 are Float, but its table is Double"},
      {{good, {}, {}, at::ones({3}, at::kDouble)},
       "the weights of feature f1 have shape [3], but its ids have shape [4]"}};
  for (const auto& [input, words] : wrong)
    run_ranks(3, [&](World& world) {
      DistributedEmbedding layer(problem.configs, problem.plans, mesh_of(world), problem.features, {});
      const Tensors tables = filled(layer, problem.values);
      const FeatureInput fine{good, {}, {}, {}};
      for (int64_t step = 0; step < 2; ++step) {
        const auto lookup = layer.start({fine, world.rank() == 1 ? input : fine, fine}, tables);
        try {
          lookup->wait();
          ADD_FAILURE() << "no error: " << words;
        } catch (const c10::Error& error) {
          expect_error(words, error.what_without_backtrace());
        }
        const Tensors results = layer.start({fine, fine, fine}, tables)->wait();  // and the layer goes on
        EXPECT_TRUE(results[2].equal(problem.values[2].narrow(0, 0, 4)));
      }
    });
}

TEST(DistributedEmbeddingErrorsTest, TablesWithoutInputAndForeignTablesAreErrors) {
  EmbeddingProblem problem = round_robin_problem(2, 1);
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
                 error_of([&] { layer.start({fine, fine}, tables)->wait(); }));
    expect_error("got 1 inputs for 2 features", error_of([&] { layer.start({fine}, layer.tables())->wait(); }));
    DistributedEmbedding by_owner(problem.configs, problem.plans, mesh, problem.features, {.dp_input = false});
    expect_error("got 1 inputs for 2 features. Give one for each, and None for a table of another rank",
                 error_of([&] { by_owner.start({fine}, by_owner.tables())->wait(); }));
    expect_error("got 1 tables, but the layer has 2",
                 error_of([&] { layer.start({fine, fine}, {layer.tables()[0]})->wait(); }));
  });
}

TEST(DistributedEmbeddingErrorsTest, PlansFeaturesAndStoragesOfOtherTablesAreErrors) {
  EmbeddingProblem problem = round_robin_problem(2, 1);
  run_ranks(1, [&](World& world) {
    const MeshPtr mesh = mesh_of(world);
    const auto error_of = [&](const auto& change, DistributedEmbedding::Options options, TableStorages storages) {
      auto [configs, plans, features] = std::tuple(problem.configs, problem.plans, problem.features);
      change(configs, plans, features);
      try {
        DistributedEmbedding(configs, plans, mesh, features, options, storages);
      } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    const auto as_it_is = [](auto&, auto&, auto&) {};
    expect_error("feature f1 uses table 2, but there are only 2 tables",
                 error_of([](auto&, auto&, auto& features) { features[1].table = 2; }, {}, {}));
    expect_error("the plan has 1 tables, but the layer has 2",
                 error_of([](auto&, auto& plans, auto&) { plans.pop_back(); }, {}, {}));
    expect_error(
        "the plan puts table t1 on rank 7, but the mesh (1) has 1 ranks",
        error_of([](auto&, auto& plans, auto&) { plans[1].slices = SliceList({TableSlice{1, 7, {0, 50}, {0, 4}}}); },
                 {}, {}));
    expect_error("there are no inputs to concatenate", error_of(
                                                           [](auto& configs, auto& plans, auto& features) {
                                                             configs.clear();
                                                             plans.clear();
                                                             features.clear();
                                                           },
                                                           {.concatenates = true}, {}));
    TableStorage storage;
    storage.cache_rows = 10;
    expect_error("storage is set for table 5, but there are only 2", error_of(as_it_is, {}, {{5, storage}}));
    expect_error("rank 0 has two slices of the same columns of table t1, which lies in files",
                 error_of(
                     [](auto&, auto& plans, auto&) {
                       plans[1].slices = SliceList({TableSlice{1, 0, {0, 20}, {0, 4}}, {1, 0, {20, 50}, {0, 4}}});
                     },
                     {}, {{1, storage}}));
  });
}

}  // namespace
}  // namespace shardwise::distributed_embedding_errors_test
