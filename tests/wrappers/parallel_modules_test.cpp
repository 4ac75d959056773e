// Model-parallel layers as torch::nn modules against the dense computation: values, gradients, messages, initial values.
#include "wrappers/parallel_modules.h"

#include "runtime/comm/events.h"
#include "tests/support/either_world.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::parallel_modules_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Counts = std::map<std::string, int64_t>;

at::Tensor whole(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? full_tensor(tensor.detach()) : tensor.detach();
}

Tensors wholes(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(whole(tensor));
  return result;
}

void expect_close(const Tensors& ours, const Tensors& dense, const std::string& what) {
  ASSERT_EQ(ours.size(), dense.size());
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(ours[i].allclose(dense[i], 1e-12, 1e-12)) << what << ", tensor " << i;
}

/// An embedding, a column layer and a row layer: V words, D wide, H hidden.
struct Sizes {
  int64_t V, D, H, stride = 1;
};

class Mlp {
 public:
  Mlp(const Sizes& sizes, const MeshPtr& mesh, int64_t mesh_dim = 0)
      : table(ParallelEmbeddingOptions(sizes.V, sizes.D).mesh(mesh).mesh_dim(mesh_dim).dtype(at::kDouble)),
        up(ColumnParallelLinearOptions(sizes.D, sizes.H)
               .mesh(mesh)
               .mesh_dim(mesh_dim)
               .dtype(at::kDouble)
               .gather_output(false)
               .stride(sizes.stride)),
        down(RowParallelLinearOptions(sizes.H, sizes.D)
                 .mesh(mesh)
                 .mesh_dim(mesh_dim)
                 .dtype(at::kDouble)
                 .input_is_parallel(true)
                 .stride(sizes.stride)) {
    initialize_(up->bias, "normal");
    initialize_(down->bias, "normal");
  }
  at::Tensor operator()(const at::Tensor& ids) { return down(at::tanh(up(table(ids)))); }
  Tensors parameters() const { return {table->weight, up->weight, up->bias, down->weight, down->bias}; }

  ParallelEmbedding table;
  ColumnParallelLinear up;
  RowParallelLinear down;
};

at::Tensor dense_mlp(const at::Tensor& ids, const Tensors& p) {
  return at::linear(at::tanh(at::linear(at::embedding(p[0], ids), p[1], p[2])), p[3], p[4]);
}

const std::vector<Sizes> kSizes{{10, 8, 12},    {10, 7, 9},     {5, 2, 3},   {9, 1, 1},
                                {10, 8, 12, 3}, {10, 7, 11, 2}, {6, 2, 3, 3}};

TEST(ParallelModulesTest, M6TheMlpIsDenseForwardAndBackward) {
  for (int64_t n_ranks = 1; n_ranks <= 4; ++n_ranks)
    for (const Sizes& sizes : kSizes)
      run_ranks(n_ranks, [&](World&) {
        const MeshPtr mesh =
            make_mesh({n_ranks}, n_ranks == 3 ? std::vector<int64_t>{2, 0, 1} : std::vector<int64_t>{});
        at::manual_seed(7);
        Mlp mlp(sizes, mesh);
        const at::Tensor ids = at::arange(15).mul(7).remainder(sizes.V).view({3, 5});
        Tensors dense = wholes(mlp.parameters());
        for (at::Tensor& parameter : dense) parameter.requires_grad_();
        const at::Tensor expected = dense_mlp(ids, dense);
        const Tensors expected_grads = torch::autograd::grad({expected.square().sum()}, dense);

        for (const std::string given : {"plain", "replicated", "by batch"}) {
          at::Tensor input = ids;
          if (given != "plain")
            input = lay_out(ids, mesh, {given == "by batch" ? Placement::shard(0) : Placement::replicate()});
          const at::Tensor y = mlp(input);
          EXPECT_EQ(is_dtensor(y), given != "plain");
          const Tensors grads = torch::autograd::grad({y.square().sum()}, mlp.parameters());
          const std::string what =
              fmt::format("{} ids, {} ranks, D {} H {} stride {}", given, n_ranks, sizes.D, sizes.H, sizes.stride);
          expect_close({whole(y)}, {expected.detach()}, what);
          expect_close(wholes(grads), expected_grads,
                       what + ": a gradient W times too large where each rank replays the loss?");
        }
      });
}

TEST(ParallelModulesTest, E7GradientsAreNotWTimesTooLargeWhereEachRankReplaysTheLoss) {
  run_ranks(4, [](World&) {
    const MeshPtr mesh = make_mesh({4});
    const at::Tensor ids = at::tensor({3, 0, 3}), ones = at::ones({3, 6}, at::kDouble).requires_grad_();
    for (const int64_t dim : {0, 1}) {
      ParallelEmbedding table(ParallelEmbeddingOptions(5, 6).mesh(mesh).dim(dim));
      const at::Tensor grad = full_tensor(torch::autograd::grad({table(ids).sum()}, {table->weight})[0]);
      EXPECT_TRUE(grad.equal(at::tensor({1, 0, 0, 2, 0}, at::kFloat).unsqueeze(1).expand({5, 6}))) << dim;
    }
    ColumnParallelLinear up(ColumnParallelLinearOptions(6, 7).mesh(mesh).dtype(at::kDouble).init_type("ones"));
    RowParallelLinear down(RowParallelLinearOptions(6, 7).mesh(mesh).dtype(at::kDouble).init_type("ones"));
    for (const Tensors& p :
         {Tensors{up(ones).sum(), up->weight, up->bias}, {down(ones).sum(), down->weight, down->bias}}) {
      const Tensors grads = torch::autograd::grad({p[0]}, {p[1], p[2], ones});
      EXPECT_TRUE(full_tensor(grads[0]).equal(at::full({7, 6}, 3., at::kDouble)));
      EXPECT_TRUE(grads[2].equal(at::full({3, 6}, 7., at::kDouble)));
      EXPECT_TRUE(full_tensor(grads[1]).equal(at::full({7}, 3., at::kDouble)));
    }
  });
}

TEST(ParallelModulesTest, M6OnOneDimOfA2DMeshWithTheBatchOnTheOther) {
  run_ranks(6, [](World&) {
    const MeshPtr mesh = make_mesh({2, 3}, {5, 3, 1, 0, 2, 4});
    at::manual_seed(7);
    Mlp mlp({10, 7, 9}, mesh, 1);
    const at::Tensor ids = at::arange(15).mul(7).remainder(10).view({3, 5});
    Tensors dense = wholes(mlp.parameters());
    for (at::Tensor& parameter : dense) parameter.requires_grad_();
    const at::Tensor expected = dense_mlp(ids, dense);
    const Tensors expected_grads = torch::autograd::grad({expected.square().sum()}, dense);
    const at::Tensor y = mlp(lay_out(ids, mesh, {Placement::shard(0), Placement::replicate()}));
    EXPECT_EQ(spec_of(y)->placements().vec(), (Placements{Placement::shard(0), Placement::replicate()}));
    expect_close({whole(y)}, {expected.detach()}, "2-D");
    expect_close(wholes(torch::autograd::grad({y.square().sum()}, mlp.parameters())), expected_grads, "2-D");
  });
}

TEST(ParallelModulesTest, M3ARowLayerAfterAColumnLayerNeedsOneAllReduceEachWay) {
  for (const int64_t stride : {1, 3})
    run_ranks(4, [&](World&) {
      const MeshPtr mesh = make_mesh({4});
      Mlp mlp({10, 8, 12, stride}, mesh);
      for (const bool is_plain : {true, false}) {
        at::Tensor x = at::rand({3, 5, 8}, at::kDouble);
        x = (is_plain ? x : lay_out(x, mesh, {Placement::replicate()})).requires_grad_();
        at::Tensor y;
        {
          CommTrace trace;
          y = mlp.down(at::tanh(mlp.up(x)));
          EXPECT_EQ(trace.counts(), (Counts{{"all_reduce", 1}})) << "plain " << is_plain << " stride " << stride;
        }
        const Tensors p{mlp.up->weight, mlp.up->bias, mlp.down->weight, mlp.down->bias};
        CommTrace trace;
        Tensors grads = torch::autograd::grad({y}, p, {at::ones_like(y)}, /*retain_graph=*/true);
        EXPECT_EQ(trace.counts(), Counts{}) << "parameters alone: plain " << is_plain << " stride " << stride;
        at::Tensor of_input = torch::autograd::grad({y}, {x}, {at::ones_like(y)})[0];
        if (!is_plain) of_input = redistribute(of_input, {Placement::replicate()});
        EXPECT_EQ(trace.counts(), (Counts{{"all_reduce", 1}})) << "plain " << is_plain << " stride " << stride;
        for (size_t i = 0; i < p.size(); ++i) EXPECT_EQ(spec_of(grads[i]), spec_of(p[i]));
      }
    });
}

TEST(ParallelModulesTest, M3GatheredColumnsAndWholeInputsOfRowsAreDense) {
  run_ranks(4, [](World&) {
    const MeshPtr mesh = make_mesh({4});
    for (const int64_t stride : {1, 2, 5}) {
      ColumnParallelLinear up(ColumnParallelLinearOptions(5, 10).mesh(mesh).dtype(at::kDouble).stride(stride));
      RowParallelLinear down(RowParallelLinearOptions(10, 3).mesh(mesh).dtype(at::kDouble).bias(false).stride(stride));
      EXPECT_FALSE(down->bias.defined());
      const at::Tensor x = at::rand({2, 5}, at::kDouble).fill_(0.5).requires_grad_();
      const at::Tensor w1 = whole(up->weight), w2 = whole(down->weight);
      const at::Tensor y = up(x), z = down(y);
      expect_close({whole(y), whole(z)}, {at::linear(x, w1).detach(), at::linear(at::linear(x, w1), w2).detach()},
                   "values");
      const at::Tensor grad = torch::autograd::grad({z.sum()}, {x})[0];
      expect_close({grad}, {at::ones({2, 3}, at::kDouble).matmul(w2).matmul(w1)}, "the input's gradient");
    }
  });
}

TEST(ParallelModulesTest, M3StridesInterleaveAndResultsStayInTheOrderOfTheMaster) {
  run_ranks(2, [](World& world) {
    const MeshPtr mesh = make_mesh({2});
    ColumnParallelLinear qkv(ColumnParallelLinearOptions(1, 12).mesh(mesh).stride(3).bias(false).gather_output(false));
    set_master_(qkv->weight, at::arange(12, at::kFloat).view({12, 1}));
    const auto own = at::tensor({0, 1, 4, 5, 8, 9}, at::kFloat) + 2 * world.rank();
    EXPECT_TRUE(qkv(at::ones({1, 1})).equal(own.view({1, 6}))) << "queries, keys and values of this rank's heads";
    const at::Tensor y = qkv(lay_out(at::ones({1, 1}), mesh, {Placement::replicate()}));
    EXPECT_TRUE(full_tensor(y).equal(at::arange(12, at::kFloat).view({1, 12})));
  });
}

TEST(ParallelModulesTest, WeightsOfAnyOtherLayoutAreDenseToo) {
  run_ranks(3, [](World&) {
    const MeshPtr mesh = make_mesh({3});
    const at::Tensor w = at::arange(20, at::kDouble).view({4, 5}), b = at::arange(4, at::kDouble);
    const at::Tensor x = at::arange(10, at::kDouble).view({2, 5}).requires_grad_();
    const Placements layouts{
        Placement::replicate(),
        Placement::shard(0),
        Placement::shard(1, {0, 4, 1}),
        Placement::enumerable({{{0, 0}, {4, 2}, 2}, {{0, 2}, {1, 3}, 0}, {{1, 2}, {3, 3}, 2}}),  // a grid
        Placement::enumerable({{{0, 0}, {1, 5}, 2}, {{1, 0}, {3, 5}, 0}}),                       // none on rank 1
        Placement::enumerable({{{2, 0}, {2, 5}, 1}, {{1, 0}, {1, 5}, 2}, {{0, 0}, {1, 5}, 0}}),  // rows in any order
        Placement::enumerable({{{0, 3}, {4, 2}, 1}, {{0, 0}, {4, 1}, 2}, {{0, 1}, {4, 2}, 0}}),  // columns in any order
    };
    for (const Placement& layout : layouts) {
      const at::Tensor weight = lay_out(w, mesh, {layout}).requires_grad_();
      const at::Tensor bias = lay_out(b, mesh, {Placement::replicate()}).requires_grad_();
      for (const at::Tensor& y : {column_parallel_linear(x, weight, bias), row_parallel_linear(x, weight, bias)}) {
        expect_close({y.detach()}, {at::linear(x, w, b).detach()}, to_string(layout));
        expect_close(wholes(torch::autograd::grad({y.sum()}, {x, weight, bias})),
                     {w.sum(0).expand({2, 5}), x.detach().sum(0).expand({4, 5}), at::full({4}, 2., at::kDouble)},
                     to_string(layout));
      }
    }
  });
}

TEST(ParallelModulesTest, M3TheBiasIsAddedOnce) {
  run_ranks(3, [](World&) {
    for (const int64_t stride : {1, 2}) {
      RowParallelLinear row(RowParallelLinearOptions(6, 2).mesh(make_mesh({3})).init_type("zeros").stride(stride));
      initialize_(row->bias, "ones");
      EXPECT_TRUE(row(at::ones({4, 6})).equal(at::ones({4, 2})));
      const at::Tensor grad = torch::autograd::grad({row(at::ones({4, 6})).sum()}, {row->bias})[0];
      EXPECT_TRUE(full_tensor(grad).equal(at::full({2}, 4.F)));
    }
  });
}

TEST(ParallelModulesTest, M4WeightsAreOneMasterOnAnyNumberOfRanks) {
  std::vector<Tensors> masters;
  for (int64_t n_ranks = 1; n_ranks <= 4; ++n_ranks)
    for (const int64_t stride : {1, 3}) {
      const auto of_ranks = on_each_rank(n_ranks, [&](World&) {
        const MeshPtr mesh = make_mesh({n_ranks});
        at::manual_seed(3);
        Tensors result;
        for (const char* name :
             {"xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform", "normal", "uniform"}) {
          result.push_back(
              whole(ColumnParallelLinear(ColumnParallelLinearOptions(5, 9).mesh(mesh).init_type(name).stride(stride))
                        ->weight));
          result.push_back(whole(
              RowParallelLinear(RowParallelLinearOptions(7, 4).mesh(mesh).init_type(name).stride(stride))->weight));
          for (const int64_t dim : {0, 1})
            result.push_back(whole(
                ParallelEmbedding(ParallelEmbeddingOptions(11, 3).mesh(mesh).init_type(name).dim(dim).padding_idx(-2))
                    ->weight));
        }
        return result;
      });
      masters.insert(masters.end(), of_ranks.begin(), of_ranks.end());
    }
  for (const Tensors& master : masters) {
    for (size_t i = 0; i < master.size(); ++i) EXPECT_TRUE(master[i].equal(masters[0][i])) << i;
    EXPECT_TRUE(master[2][9].eq(0).all().item<bool>()) << "the padding row";
    EXPECT_NEAR(master[1].std().item<double>(), std::sqrt(2. / 11), 0.15) << "fans are the master's";
  }
}

TEST(ParallelModulesTest, M5NothingNeedDivide) {
  run_ranks(4, [](World& world) {
    const MeshPtr mesh = make_mesh({4});
    ColumnParallelLinear up(ColumnParallelLinearOptions(3, 10).mesh(mesh));
    EXPECT_EQ(to_local(up->weight).size(0), (std::vector<int64_t>{3, 3, 3, 1}[world.rank()]));
    ParallelEmbedding table(ParallelEmbeddingOptions(4, 17).mesh(mesh));
    EXPECT_EQ(to_local(table->weight).size(1), (std::vector<int64_t>{5, 5, 5, 2}[world.rank()]));
    RowParallelLinear row(RowParallelLinearOptions(2, 3).mesh(mesh).dtype(at::kDouble));
    const at::Tensor x = at::ones({0, 2}, at::kDouble), y = at::ones({5, 2}, at::kDouble);
    EXPECT_EQ(row(x).sizes(), (c10::IntArrayRef{0, 3}));
    EXPECT_TRUE(row(y).allclose(at::linear(y, whole(row->weight))));
  });
}

TEST(ParallelModulesTest, TablesCutByRowsAndByColumnsAreDense) {
  run_ranks(4, [](World&) {
    const MeshPtr mesh = make_mesh({4}, {2, 0, 3, 1});
    const at::Tensor ids = at::tensor({9, 0, 3, 3, 9, 1}).view({2, 3});
    for (const int64_t dim : {0, 1}) {
      ParallelEmbedding table(ParallelEmbeddingOptions(10, 6)
                                  .mesh(mesh)
                                  .dtype(at::kDouble)
                                  .dim(dim)
                                  .padding_idx(3)
                                  .scale_grad_by_freq(true));
      const at::Tensor dense = whole(table->weight).requires_grad_();
      const at::Tensor expected = at::embedding(dense, ids, 3, true);
      const at::Tensor grad = torch::autograd::grad({expected.square().sum()}, {dense})[0];
      for (const Placement& of_ids : {Placement::replicate(), Placement::shard(0), Placement::shard(1, {0, 2, 1, 0})}) {
        const at::Tensor y = table(lay_out(ids, mesh, {of_ids}));
        EXPECT_EQ(spec_of(y)->placements()[0], of_ids) << "results lie where the ids do";
        expect_close({whole(y), whole(torch::autograd::grad({y.square().sum()}, {table->weight})[0])},
                     {expected.detach(), grad}, to_string(of_ids));
      }
      const at::Tensor y = table(ids);
      expect_close({y.detach(), whole(torch::autograd::grad({y.square().sum()}, {table->weight})[0])},
                   {expected.detach(), grad}, "plain ids");
    }
    ParallelEmbedding ungathered(ParallelEmbeddingOptions(10, 6).mesh(mesh).gather_output(false));
    EXPECT_EQ(spec_of(ungathered(lay_out(ids, mesh, {Placement::replicate()})))->placements()[0], Placement::shard(2));
  });
}

TEST(ParallelModulesTest, M2MaxNormIsOfTheWholeRow) {
  run_ranks(3, [](World&) {
    const MeshPtr mesh = make_mesh({3});
    const at::Tensor ids = at::tensor({4, 1, 4});
    for (const double p : {1., 2., 3., std::numeric_limits<double>::infinity()})
      for (const int64_t dim : {0, 1}) {
        ParallelEmbedding table(
            ParallelEmbeddingOptions(6, 7).mesh(mesh).dtype(at::kDouble).dim(dim).max_norm(0.4).norm_type(p));
        at::Tensor dense = whole(table->weight).clone();
        at::embedding_renorm_(dense, ids, 0.4, p);
        EXPECT_TRUE(table(ids).allclose(at::embedding(dense, ids))) << p;
        EXPECT_TRUE(whole(table->weight).allclose(dense)) << "rows that were looked up, and only those";
      }
  });
}

TEST(ParallelModulesTest, VocabParallelCrossEntropyIsDenseAndGathersNoLogits) {
  run_ranks(4, [](World& world) {
    const MeshPtr mesh = make_mesh({4});
    const std::vector<int64_t> extents{40, 0, 25, 35};
    at::Tensor target = at::arange(6).mul(37).remainder(100);
    target[2] = -1;
    for (const double smoothing : {0., 0.1})
      for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
        const at::Tensor dense = at::arange(600, at::kDouble).mul(0.37).sin().view({6, 100}).requires_grad_();
        const at::Tensor expected = at::cross_entropy_loss(dense, target, {}, reduction, -1, smoothing);
        const at::Tensor expected_grad = torch::autograd::grad({expected.sum()}, {dense})[0];
        VocabParallelCrossEntropy loss(CrossEntropyCall{-1, reduction, smoothing});

        const auto own = [&](const at::Tensor& all) {
          return all.detach().split_with_sizes(extents, 1)[world.rank()].clone();
        };
        const at::Tensor part = own(dense).requires_grad_();
        CommTrace trace;
        const at::Tensor plain = loss(part, target);
        EXPECT_FALSE(is_dtensor(plain));
        const at::Tensor grad = torch::autograd::grad({plain.sum()}, {part})[0];
        EXPECT_LT(trace.bytes_received(), 2000) << "of 4800 bytes of logits";
        for (const CommEvent& event : trace.events()) EXPECT_TRUE(event.collective != "all_to_all") << event.op;
        expect_close({plain.detach(), grad}, {expected.detach(), own(expected_grad)}, "plain");

        const at::Tensor logits = lay_out(dense.detach(), mesh, {Placement::shard(1, extents)}).requires_grad_();
        for (const Placement& of_target : {Placement::replicate(), Placement::shard(0)}) {
          const at::Tensor ours = loss(logits, lay_out(target, mesh, {of_target}));
          expect_close({whole(ours), whole(torch::autograd::grad({ours.sum()}, {logits})[0])},
                       {expected.detach(), expected_grad}, "DTensors");
        }
      }
  });
}

TEST(ParallelModulesTest, ModulesRegisterTheirParameters) {
  run_ranks(2, [](World&) {
    ColumnParallelLinear up(ColumnParallelLinearOptions(3, 5));
    EXPECT_EQ(up->named_parameters().keys(), (std::vector<std::string>{"weight", "bias"}));
    EXPECT_TRUE(is_dtensor(up->named_parameters()["weight"]) && up->weight.requires_grad());
    EXPECT_EQ(up->options.mesh_->size(), 2);
    EXPECT_TRUE(up->bias.requires_grad());
    RowParallelLinear down(RowParallelLinearOptions(5, 3));
    EXPECT_TRUE(down->weight.requires_grad() && down->bias.requires_grad());
  });
}

TEST(ParallelModulesTest, Refusals) {
  run_ranks(2, [](World&) {
    const MeshPtr mesh = make_mesh({2}), grid = make_mesh({1, 2});
    const auto column = [&](auto&& change) {
      return error_of<c10::Error>(
          [&] { ColumnParallelLinear up(change(ColumnParallelLinearOptions(4, 6).mesh(mesh))); });
    };
    expect_error("[initialize_] \"gauss\" is no distribution. Use one of \"xavier_normal\"",
                 column([](auto options) { return options.init_type("gauss"); }));
    expect_error("[parallel_weight] stride 0", column([](auto options) { return options.stride(0); }));
    expect_error("[parallel_weight] mesh dim 1 does not exist",
                 column([](auto options) { return options.mesh_dim(1); }));
    expect_error(
        "[parallel_weight] dim 2 does not exist: the weight is of shape [4, 6]",
        error_of<c10::IndexError>([&] { parallel_weight({4, 6}, {mesh, 0, Placement::shard(2)}, at::kFloat); }));
    expect_error("needs a 1-D mesh; this one is (1, 2)",
                 column([&](auto options) { return options.mesh(grid).stride(3); }));

    CommTrace trace;
    RowParallelLinear row(RowParallelLinearOptions(4, 6).mesh(mesh).input_is_parallel(true));
    expect_error("[row_parallel_linear] the part of shape [3, 4] should be 2 wide",
                 error_of<c10::ValueError>([&] { row(at::ones({3, 4})); }));
    expect_error("[set_master_] the master is of shape [6, 2], the parameter of [6, 4]",
                 error_of<c10::ValueError>([&] { set_master_(row->weight, at::ones({6, 2})); }));
    ColumnParallelLinear up(ColumnParallelLinearOptions(4, 6).mesh(mesh));
    expect_error("[column_parallel_linear] an input of shape [3, 5] does not go with a weight of shape [6, 4]",
                 error_of<c10::ValueError>([&] { up(at::ones({3, 5})); }));
    const at::Tensor elsewhere = lay_out(at::ones({3, 4}), grid, {Placement::replicate(), Placement::replicate()});
    expect_error("[column_parallel_linear] operands live on different meshes: (1, 2) and (2)",
                 error_of<c10::Error>([&] { up(elsewhere); }));
    ParallelEmbedding table(ParallelEmbeddingOptions(4, 6).mesh(mesh));
    table->options.padding_idx(4);
    expect_error("[parallel_embedding] padding_idx 4 is no row of the table: it has 4 rows",
                 error_of<c10::ValueError>([&] { table(at::tensor({1})); }));
    expect_error("[parallel_embedding] mesh dim 1 does not exist: the mesh is (2)", error_of<c10::IndexError>([&] {
                   parallel_embedding(at::tensor({1}), table->weight, {.mesh_dim = 1});
                 }));
    EXPECT_EQ(trace.total_count(), 0);
  });
}

}  // namespace
}  // namespace shardwise::parallel_modules_test
