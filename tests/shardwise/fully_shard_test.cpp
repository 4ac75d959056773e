// FSDP of torch::nn modules against the dense model on the whole batch: values, gradients, steps, and what is sent.
#include "shardwise/fully_shard.h"

#include "runtime/comm/comm_trace.h"
#include "tests/shardwise/models.h"
#include "tests/support/either_world.h"
#include "tests/support/ranks.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace sw = shardwise;

namespace shardwise::fully_shard_test {
namespace {

using Rows = std::vector<int64_t>;
using Counts = std::map<std::string, int64_t>;

const bool head_is_known = sw::declare_tensors<TiedHeadImpl>({&TiedHeadImpl::weight});

at::Tensor part_of(const at::Tensor& dense, const Rows& n_rows, int64_t place) {
  return dense.split_with_sizes(n_rows)[place].contiguous();
}

struct Data {
  at::Tensor ids, targets;  // [rows, 3]
};

Data data_of(int64_t n_rows, int64_t n_words) {
  return {at::randint(n_words, {n_rows, 3}), at::randint(n_words, {n_rows, 3})};
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

/// A few steps of both models; ours on this rank's rows along `mesh`.
template <class Model>
void expect_trained_alike(Model& ours, Model& dense, const sw::Mesh& mesh, const Data& data, const Rows& n_rows,
                          const std::string& what) {
  torch::optim::Adam our_optimizer(ours->parameters(), 0.01), dense_optimizer(dense->parameters(), 0.01);
  const int64_t place = mesh->is_member() ? mesh.get_local_rank() : 0;
  const at::Tensor ids = part_of(data.ids, n_rows, place), targets = part_of(data.targets, n_rows, place);
  for (int step = 0; step < 3; ++step) {
    our_optimizer.zero_grad();
    dense_optimizer.zero_grad();
    const at::Tensor logits = sw::forward(ours, ids), expected = dense(data.ids);
    loss_of(logits, sw::from_local_batch(targets, mesh)).backward();
    loss_of(expected, data.targets).backward();
    if (mesh->is_member()) {
      expect_near(logits, expected.detach(), what);
      expect_same_parameters(*ours, *dense, what);
    }
    our_optimizer.step();
    dense_optimizer.step();
  }
  if (mesh->is_member()) expect_same_parameters(*ours, *dense, what + " end");
}

TEST(FullyShardTest, TrainsAsTheDenseModelOnTheWholeBatch) {
  ASSERT_TRUE(head_is_known);
  const Values values = values_of(Words(11, 6, 7, 2));
  for (const Rows& n_rows : {Rows{4}, Rows{2, 3}, Rows{3, 0, 4}, Rows{2, 2, 2, 2}})
    for (const bool reshards : {true, false}) {
      const auto n_ranks = static_cast<int64_t>(n_rows.size());
      const Data data = data_of(std::accumulate(n_rows.begin(), n_rows.end(), int64_t{0}), 11);
      run_ranks(n_ranks, [&](World&) {
        const sw::Mesh mesh = sw::init_device_mesh("cpu", {n_ranks}, {"dp"});
        Words ours = with_values(Words(11, 6, 7, 2), values), dense = with_values(Words(11, 6, 7, 2), values);
        sw::fully_shard(ours, mesh, {.reshard_after_forward = reshards});
        EXPECT_TRUE(ours->table->weight.is_same(ours->head->weight));
        for (const at::Tensor& parameter : ours->parameters()) {
          ASSERT_TRUE(is_dtensor(parameter) && parameter.is_leaf() && parameter.requires_grad());
          EXPECT_EQ(to_string(spec_of(parameter)->placements()), "[Shard(0)]");
        }
        expect_trained_alike(ours, dense, mesh, data, n_rows, fmt::format("{} ranks", n_ranks));
      });
    }
}

TEST(FullyShardTest, ComposesWithTensorParallelismOnAnotherDim) {
  const Values values = values_of(Words(11, 6, 7, 2));
  const Rows n_rows{3, 4};
  const Data data = data_of(7, 11);
  for (const bool reshards : {true, false})
    run_ranks(4, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
      Words ours = with_values(Words(11, 6, 7, 2), values), dense = with_values(Words(11, 6, 7, 2), values);
      sw::parallelize_module(ours, mesh["tp"],
                             {{"layers.*.up", sw::ColwiseParallel()},
                              {"layers.*.down", sw::RowwiseParallel()},
                              {"table", sw::RowwiseParallel()}});
      sw::fully_shard(ours, mesh["dp"], {.reshard_after_forward = reshards});
      const auto& block = *ours->layers->ptr<MlpBlockImpl>(0);
      const auto placements = [](const at::Tensor& tensor) { return to_string(spec_of(tensor)->placements()); };
      EXPECT_EQ(placements(block.up->weight), "[Shard(1), Shard(0)]");
      EXPECT_EQ(placements(block.up->bias), "[Shard(0), Shard(0)]");
      EXPECT_EQ(placements(block.down->weight), "[Shard(0), Shard(1)]");
      EXPECT_EQ(placements(block.norm->weight), "[Shard(0), Replicate()]");
      EXPECT_TRUE(ours->table->weight.is_same(ours->head->weight));
      expect_trained_alike(ours, dense, mesh["dp"], data, n_rows, "2 x 2");
    });
}

TEST(FullyShardTest, ShardsOverTheSecondOfTwoDimsAndReplicatesOverTheFirst) {
  const Values values = values_of(MlpBlock(6, 7));
  const Rows n_rows{3, 0, 2, 4};
  const at::Tensor x = at::randn({9, 6}, at::kDouble);
  run_ranks(4, [&](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"replicate", "shard"});
    MlpBlock ours = with_values(MlpBlock(6, 7), values), dense = with_values(MlpBlock(6, 7), values);
    sw::fully_shard(ours, mesh);
    EXPECT_EQ(to_string(spec_of(ours->up->weight)->placements()), "[Replicate(), Shard(0)]");
    sw::forward(ours, part_of(x, n_rows, world.rank())).square().sum().backward();
    dense(x).square().sum().backward();
    expect_same_parameters(*ours, *dense, "2 x 2");
  });
}

TEST(FullyShardTest, RanksOutsideTheMeshCallAlong) {
  const Values values = values_of(Words(11, 6, 7, 1));
  const Data data = data_of(5, 11);
  run_ranks(3, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"dp"});
    Words ours = with_values(Words(11, 6, 7, 1), values), dense = with_values(Words(11, 6, 7, 1), values);
    sw::fully_shard(ours, mesh);
    expect_trained_alike(ours, dense, mesh, data, {2, 3}, "outside");
  });
}

/// Two layers without biases, so that what is sent is easily counted.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))); }

  torch::nn::Linear up{torch::nn::LinearOptions(8, 12).bias(false)}, down{torch::nn::LinearOptions(12, 8).bias(false)};
};
TORCH_MODULE(Pair);

// Each rank receives what it lacks of each weight, and of each gradient the terms of its own part, and nothing else. What autograd saved of the
// weights, here both, is gathered again but where it was kept.
TEST(FullyShardTest, SendsWeightsBeforeTheirUseAndGradientsOnce) {
  constexpr int64_t kRanks = 4, kBytes = 8 * 12 * 8, kLacks = kBytes * (kRanks - 1) / kRanks;
  const Values values = values_of(Pair());
  for (const bool reshards : {true, false})
    for (const int64_t n_rows : {1, 100})  // fewer than the layers have, and more
      run_ranks(kRanks, [&](World&) {
        const sw::Mesh mesh = sw::init_device_mesh("cpu", {kRanks});
        Pair model = with_values(Pair(), values);
        sw::fully_shard(model, mesh, {.reshard_after_forward = reshards});
        const sw::DTensor x = sw::randn({kRanks * n_rows, 8}, mesh, {sw::Shard(0)}, torch::kDouble);
        at::Tensor loss;
        {
          const CommTrace trace;
          const at::Tensor y = sw::forward(model, x);
          EXPECT_EQ(trace.bytes_received(), 2 * kLacks);
          EXPECT_EQ(trace.total_count(), 1);
          EXPECT_EQ(to_string(spec_of(y)->placements()), "[Shard(0)]");
          loss = y.square().sum();
        }
        {
          const CommTrace trace;
          loss.backward();
          EXPECT_EQ(trace.bytes_received(), (reshards ? 4 : 2) * kLacks);
          EXPECT_EQ(trace.total_count(), reshards ? 2 : 1);
        }
        for (const at::Tensor& parameter : model->parameters()) {
          EXPECT_TRUE(parameter.is_leaf());
          EXPECT_EQ(sw::to_local(parameter.grad()).nbytes(), kBytes / kRanks);
        }
        EXPECT_TRUE(model->up->weight.is_same(model->named_parameters()["up.weight"]));
      });
}

TEST(FullyShardTest, WhatWasGatheredIsFreedAfterTheForwardUnlessItIsKept) {
  struct NetImpl : torch::nn::Module {
    NetImpl() { register_module("linear", linear); }
    at::Tensor forward(const at::Tensor& x) {
      gathered = to_pieces(linear->weight.detach())[0].storage().getWeakStorageImpl();
      return linear(x);
    }
    torch::nn::Linear linear{8, 12};
    c10::weak_intrusive_ptr<c10::StorageImpl> gathered{c10::intrusive_ptr<c10::StorageImpl>()};
  };
  for (const bool reshards : {true, false})
    run_ranks(2, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
      const torch::nn::ModuleHolder<NetImpl> model(std::make_shared<NetImpl>());
      sw::fully_shard(model, mesh, {.reshard_after_forward = reshards});
      const sw::DTensor x = sw::ones({6, 8}, mesh, {sw::Shard(0)}).requires_grad_();
      at::Tensor loss = sw::forward(model, x).square().sum();
      {
        const auto storage = model.ptr()->gathered.lock();
        EXPECT_EQ(!storage || !storage->_mutable_data_ptr_no_checks().get(), reshards);
      }
      {
        constexpr int64_t kUnit = (8 * 12 + 12) * 4;  // the bias too, which the backward does not read
        const CommTrace trace;
        loss.backward();
        EXPECT_EQ(trace.bytes_received(), (reshards ? 2 : 1) * kUnit / 2);
      }
      loss.reset();
      EXPECT_TRUE(model.ptr()->gathered.expired());
      {
        const at::NoGradGuard no_grad;
        sw::forward(model, x);
      }
      EXPECT_TRUE(model.ptr()->gathered.expired());
    });
}

TEST(FullyShardTest, WhatTheOutputsDoNotReachIsAnErrorInTheBackwardUnlessItIsKept) {
  struct NetImpl : torch::nn::Module {
    NetImpl() { register_module("linear", linear); }
    at::Tensor forward(const at::Tensor& x) {
      hidden = linear(x).sum();
      return x.sum();
    }
    torch::nn::Linear linear{8, 12};
    at::Tensor hidden;
  };
  for (const bool reshards : {true, false})
    run_ranks(2, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
      const torch::nn::ModuleHolder<NetImpl> model(std::make_shared<NetImpl>());
      sw::fully_shard(model, mesh, {.reshard_after_forward = reshards});
      sw::forward(model, sw::ones({6, 8}, mesh, {sw::Shard(0)}).requires_grad_());
      const std::string error = error_of<c10::Error>([&] { model.ptr()->hidden.backward(); });
      expect_error(reshards ? "gathered for a forward is read outside of it" : "", error);
      EXPECT_EQ(error.empty(), !reshards);
    });
}

TEST(FullyShardTest, AStepBeforeTheBackwardIsAnErrorWhereWeightsAreGatheredAgain) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    Pair model;
    sw::fully_shard(model, mesh);
    const at::Tensor loss = sw::forward(model, sw::ones({6, 8}, mesh, {sw::Shard(0)})).sum();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.add_(1);
    }
    expect_error("was written to between a forward and the backward", error_of<c10::Error>([&] { loss.backward(); }));
  });
}

TEST(FullyShardTest, CalledAsUsualOperatorsMoveWhatIsFewerBytes) {
  const Values values = values_of(Pair());
  const at::Tensor x = at::randn({2, 8}, at::kDouble);
  run_ranks(2, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    Pair ours = with_values(Pair(), values), dense = with_values(Pair(), values);
    sw::fully_shard(ours, mesh);
    const CommTrace trace;
    const at::Tensor y = ours(sw::distribute_tensor(x, mesh, {sw::Shard(0)}, std::nullopt));
    expect_near(y, dense(x).detach(), "y");
    y.square().sum().backward();
    dense(x).square().sum().backward();
    EXPECT_LT(trace.bytes_received(), 3 * 8 * 12 * 8 / 2);  // less than forward() sends
    expect_same_parameters(*ours, *dense, "small");
  });
}

TEST(FullyShardTest, OfATableRowsMove) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    torch::nn::Embedding table(1000, 4);
    sw::fully_shard(table, mesh);
    const CommTrace trace;
    sw::forward(table, at::tensor({1, 999})).sum().backward();
    EXPECT_LT(trace.bytes_received(), 1000);
    EXPECT_EQ(spec_of(table->weight.grad())->placements(), spec_of(table->weight)->placements());
  });
}

TEST(FullyShardTest, AnInnerUnitIsLeftToItself) {
  const Values values = values_of(Words(11, 6, 7, 2));
  const Data data = data_of(5, 11);
  run_ranks(2, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"dp"});
    Words ours = with_values(Words(11, 6, 7, 2), values), dense = with_values(Words(11, 6, 7, 2), values);
    auto& first = *ours->layers->ptr<MlpBlockImpl>(0);
    sw::fully_shard(first, mesh);
    const at::Tensor weight = first.up->weight;
    sw::fully_shard(ours, mesh,
                    {.reshard_after_forward = false});  // which calls `first` as usual: its weights move by the rules
    EXPECT_TRUE(first.up->weight.is_same(weight));
    expect_trained_alike(ours, dense, mesh, data, {2, 3}, "units");
  });
}

TEST(FullyShardTest, OptimizersOfTorchStepOnShardsAndClip) {
  const Values values = values_of(MlpBlock(6, 7));
  const at::Tensor x = at::randn({6, 6}, at::kDouble);
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  using torch::optim::AdagradOptions, torch::optim::AdamOptions, torch::optim::RMSpropOptions, torch::optim::SGDOptions;
  const std::vector<Make> makes = {
      [](auto p) { return std::make_unique<torch::optim::SGD>(p, SGDOptions(0.1).momentum(0.9).nesterov(true)); },
      [](auto p) { return std::make_unique<torch::optim::Adam>(p, AdamOptions(0.1).amsgrad(true).weight_decay(0.1)); },
      [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, AdagradOptions(0.1)); },
      [](auto p) { return std::make_unique<torch::optim::RMSprop>(p, RMSpropOptions(0.1).centered(true)); },
  };
  for (const Make& make : makes)
    run_ranks(2, [&](World& world) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
      MlpBlock ours = with_values(MlpBlock(6, 7), values), dense = with_values(MlpBlock(6, 7), values);
      sw::fully_shard(ours, mesh);
      const auto our_optimizer = make(ours->parameters()), dense_optimizer = make(dense->parameters());
      for (int step = 0; step < 2; ++step) {
        sw::forward(ours, x.narrow(0, world.rank() * 3, 3)).square().sum().backward();
        dense(x).square().sum().backward();
        const double norm = torch::nn::utils::clip_grad_norm_(ours->parameters(), 1.0);
        EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(dense->parameters(), 1.0), 1e-9 * norm);
        our_optimizer->step();
        dense_optimizer->step();
        our_optimizer->zero_grad();
        dense_optimizer->zero_grad();
      }
      expect_same_parameters(*ours, *dense, "optimizer");
    });
}

TEST(FullyShardTest, FrozenParametersAndNoGradWork) {
  const Values values = values_of(MlpBlock(6, 7));
  const at::Tensor x = at::randn({6, 6}, at::kDouble);
  for (const bool reshards : {true, false})
    run_ranks(2, [&](World& world) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
      MlpBlock ours = with_values(MlpBlock(6, 7), values), dense = with_values(MlpBlock(6, 7), values);
      ours->up->weight.set_requires_grad(false);
      dense->up->weight.set_requires_grad(false);
      sw::fully_shard(ours, mesh, {.reshard_after_forward = reshards});
      EXPECT_FALSE(ours->up->weight.requires_grad());
      const at::Tensor own = x.narrow(0, world.rank() * 3, 3);
      {
        const at::NoGradGuard no_grad;
        expect_near(sw::forward(ours, own), dense(x), "no grad");
      }
      sw::forward(ours, own).square().sum().backward();
      dense(x).square().sum().backward();
      expect_same_parameters(*ours, *dense, "frozen");
    });
}

TEST(FullyShardTest, ANormOfTheBatchIsThatOfTheWholeOneAndKeepsItsStatistics) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      register_module("up", up);
      register_module("norm", norm);
    }
    at::Tensor forward(const at::Tensor& x) { return norm(up(x)); }
    torch::nn::Linear up{4, 6};
    torch::nn::BatchNorm1d norm{6};
  };
  const auto make = [] { return torch::nn::ModuleHolder<NetImpl>(); };
  const Values values = values_of(make());
  const at::Tensor x = at::randn({7, 4}, at::kDouble);
  run_ranks(2, [&](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    auto ours = with_values(make(), values), dense = with_values(make(), values);
    sw::fully_shard(ours, mesh);
    const at::Tensor own = part_of(x, {3, 4}, world.rank());
    sw::forward(ours, own).square().sum().backward();
    dense->forward(x).square().sum().backward();
    expect_same_parameters(*ours, *dense, "batch norm");
    expect_near(ours->norm->running_var, dense->norm->running_var, "running_var");
    EXPECT_FALSE(is_dtensor(ours->norm->running_var));
    ours->eval();
    dense->eval();
    expect_near(sw::forward(ours, own), dense->forward(x).detach(), "eval");
  });
}

TEST(FullyShardTest, ARecurrentLayerReadsItsShardsAndItsLastStateIsAnOutput) {
  const auto make = [] { return torch::nn::LSTM(torch::nn::LSTMOptions(3, 5).batch_first(true)); };
  const Values values = values_of(make());
  const at::Tensor x = at::randn({5, 4, 3}, at::kDouble);
  run_ranks(2, [&](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    torch::nn::LSTM ours = with_values(make(), values), dense = with_values(make(), values);
    sw::fully_shard(ours, mesh);
    const auto [y, state] = sw::forward(ours, part_of(x, {2, 3}, world.rank()));
    const auto wanted = dense->forward(x);
    expect_near(y, std::get<0>(wanted).detach(), "y");
    std::get<0>(state).square().sum().backward();
    std::get<0>(std::get<1>(wanted)).square().sum().backward();
    expect_same_parameters(*ours, *dense, "lstm");
  });
}

TEST(FullyShardTest, GradientsOfSeveralForwardsAddUp) {
  const Values values = values_of(MlpBlock(6, 7));
  const at::Tensor x = at::randn({6, 6}, at::kDouble);
  for (const bool reshards : {true, false})
    run_ranks(2, [&](World& world) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
      MlpBlock ours = with_values(MlpBlock(6, 7), values), dense = with_values(MlpBlock(6, 7), values);
      sw::fully_shard(ours, mesh, {.reshard_after_forward = reshards});
      const at::Tensor own = x.narrow(0, world.rank() * 3, 3);
      const at::Tensor once = sw::forward(ours, own).square().sum(), twice = sw::forward(ours, own).cos().sum();
      once.backward();
      twice.backward();
      (dense(x).square().sum() + dense(x).cos().sum()).backward();
      expect_same_parameters(*ours, *dense, "two forwards");
    });
}

TEST(FullyShardTest, AStyleOfAnInnerModuleIsGivenDTensors) {
  run_ranks(4, [](World&) {
    struct NetImpl : torch::nn::Module {
      NetImpl() { register_module("down", down); }
      at::Tensor forward(const at::Tensor& x) { return down(gives_plain ? at::ones({2, 2}) : x); }
      sw::Parallelized<torch::nn::Linear> down{4, 3};
      bool gives_plain = false;
    };
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    const torch::nn::ModuleHolder<NetImpl> model(std::make_shared<NetImpl>());
    sw::parallelize_module(model, mesh["tp"], {{"down", sw::RowwiseParallel().output_layouts(sw::Shard(-1))}});
    sw::fully_shard(model, mesh["dp"]);
    const at::Tensor y = sw::forward(model, at::ones({2, 4}));
    EXPECT_TRUE(spec_of(y)->placements()[1].is_shard(1));
    model.ptr()->gives_plain = true;
    expect_error("Linear got a plain tensor as input 0 within the forward of a fully sharded module",
                 error_of<c10::ValueError>([&] { sw::forward(model, at::ones({2, 4})); }));
  });
}

TEST(FullyShardTest, AFailedForwardPutsTheShardsBack) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    Pair model;
    sw::fully_shard(model, mesh, {.reshard_after_forward = false});
    EXPECT_NE(error_of<c10::Error>([&] { sw::forward(model, at::ones({3, 5})); }), "");
    for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.is_leaf());
    EXPECT_EQ(sw::forward(model, at::ones({3, 8})).sizes(), (Dims{6, 8}));
  });
}

TEST(FullyShardTest, WhatCannotBeShardedIsAnErrorBeforeAnythingIs) {
  run_ranks(4, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"}), line = sw::init_device_mesh("cpu", {4});
    const auto error = [](const auto& model, const sw::Mesh& on) {
      return error_of<c10::ValueError>([&] { sw::fully_shard(model, on); });
    };
    torch::nn::Sequential mixed(torch::nn::Linear(4, 4), Undeclared());
    expect_error("the parameter 1.scale is a member of Undeclared that is not known", error(mixed, mesh["dp"]));
    for (const at::Tensor& parameter : mixed->parameters()) EXPECT_FALSE(is_dtensor(parameter));
    expect_error("has 3 dims", error(Pair(), sw::init_device_mesh("cpu", {1, 2, 2})));
    Pair model;
    sw::parallelize_module(model, mesh["tp"], {{"up", sw::ColwiseParallel()}});
    expect_error("up.weight is on the mesh (tp=2", error(model, line));
    torch::nn::Sequential elsewhere(torch::nn::ReLU(), torch::nn::Linear(4, 4));
    sw::parallelize_module(*elsewhere[0], sw::init_device_mesh("cpu", {2}), {});
    expect_error("calls of ReLU are laid out on the mesh (2), which is neither (4) nor a slice",
                 error(elsewhere, line));
    for (const at::Tensor& parameter : elsewhere->parameters()) EXPECT_FALSE(is_dtensor(parameter));
    sw::fully_shard(model, mesh["dp"]);
    expect_error("Pair is fully sharded already, over dim 0 of (dp=2, tp=2), not over dim 1 of (dp=2, tp=2)",
                 error(model, mesh["tp"]));
    Pair same_dim;
    sw::parallelize_module(same_dim, mesh["dp"], {{"down", sw::ColwiseParallel()}});
    expect_error("down.weight is already placed as [Shard(0)] on (dp=2", error(same_dim, mesh["dp"]));
    EXPECT_FALSE(is_dtensor(same_dim->up->weight));
    const at::Tensor rows = at::ones({2, 8});
    EXPECT_EQ(sw::forward(model, rows).sizes(), (Dims{4, 8}));
  });
}

}  // namespace
}  // namespace shardwise::fully_shard_test
