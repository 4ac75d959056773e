// FSDP of torch::nn modules against the dense model on the whole batch: values, gradients, steps, what is sent, and errors.
#include "shardwise/fully_shard.h"

#include "runtime/comm/events.h"
#include "tests/shardwise/models.h"
#include "tests/support/either_world.h"
#include "tests/support/ranks.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <set>

namespace sw = shardwise;

namespace shardwise::fully_shard_test {
namespace {

using Rows = std::vector<int64_t>;
using Counts = std::map<std::string, int64_t>;

const bool head_is_known = sw::declare_tensors<TiedHeadImpl>({&TiedHeadImpl::weight});

at::Tensor part_of(const at::Tensor& dense, const Rows& n_rows, int64_t place) {
  return dense.split_with_sizes(n_rows)[place].contiguous();
}

std::string placements(const at::Tensor& tensor) { return to_string(spec_of(tensor)->placements()); }

bool are_sharded(const torch::nn::Module& module) {
  return std::ranges::all_of(module.parameters(), [](const at::Tensor& each) { return is_dtensor(each); });
}

/// A batch of ids and the words that follow them: [rows, 3].
struct Data {
  at::Tensor ids, targets;

  Data part(const Rows& n_rows, int64_t place) const {
    return {part_of(ids, n_rows, place), part_of(targets, n_rows, place)};
  }
};

Data data_of(int64_t n_rows, int64_t n_words) {
  return {at::randint(n_words, {n_rows, 3}), at::randint(n_words, {n_rows, 3})};
}

/// The sum over the words; their mean over the ranks is the sum over the batch, divided by the number of ranks.
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum);
}

/// The gradients of the mean of the ranks' losses are those of the loss of all, divided by the number of ranks.
template <class Model>
void expect_mean_gradients(Model& ours, Model& dense, int64_t n_ranks, const std::string& what) {
  std::set<const c10::TensorImpl*> seen;  // tied parameters are listed twice
  for (const at::Tensor& parameter : dense->parameters())
    if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      parameter.mutable_grad().div_(n_ranks);
  expect_same_parameters(*ours, *dense, what);
}

/// A few steps of both models; ours on this rank's rows along `mesh`, in a model that `mesh` shards.
template <class Model>
void expect_trained_alike(Model& ours, Model& dense, const sw::Mesh& mesh, const Data& data, const Rows& n_rows,
                          const std::string& what) {
  torch::optim::Adam our_optimizer(ours->parameters(), 0.01), dense_optimizer(dense->parameters(), 0.01);
  const Data own = data.part(n_rows, mesh.get_local_rank());
  for (int step = 0; step < 3; ++step) {
    our_optimizer.zero_grad();
    dense_optimizer.zero_grad();
    const at::Tensor logits = sw::forward(ours, own.ids), expected = dense(data.ids);
    EXPECT_FALSE(is_dtensor(logits)) << what;
    expect_near(logits, part_of(expected.detach(), n_rows, mesh.get_local_rank()), what);
    loss_of(logits, own.targets).backward();
    EXPECT_TRUE(are_sharded(*ours)) << what;
    loss_of(expected, data.targets).backward();
    expect_mean_gradients(ours, dense, mesh.size(), what);
    our_optimizer.step();
    dense_optimizer.step();
  }
  expect_same_parameters(*ours, *dense, what + " end");
}

/// What `run` does with a block that is fully sharded over `n_ranks` ranks, and a dense one. Both rows and the dense gradients are the whole batch's.
void on_blocks(
    int64_t n_ranks, const sw::FullyShardOptions& options,
    const std::function<void(MlpBlock& ours, MlpBlock& dense, const at::Tensor& own, const at::Tensor& x)>& run) {
  const Values values = values_of(MlpBlock(6, 7));
  const at::Tensor x = at::randn({3 * n_ranks, 6}, at::kDouble);
  run_ranks(n_ranks, [&](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {n_ranks});
    MlpBlock ours = with_values(MlpBlock(6, 7), values), dense = with_values(MlpBlock(6, 7), values);
    sw::fully_shard(ours, mesh, options);
    run(ours, dense, x.narrow(0, world.rank() * 3, 3), x);
  });
}

TEST(FullyShardTest, TrainsAsTheDenseModelOnTheWholeBatch) {
  ASSERT_TRUE(head_is_known);
  const Values values = values_of(Words(11, 6, 7, 2));
  const std::vector<sw::ReshardAfterForward> reshardings{true, false, std::nullopt};
  for (const Rows& n_rows : {Rows{4}, Rows{2, 3}, Rows{3, 0, 4}, Rows{2, 2, 2, 2}})
    for (const sw::ReshardAfterForward& reshards : reshardings) {
      const auto n_ranks = static_cast<int64_t>(n_rows.size());
      const Data data = data_of(std::accumulate(n_rows.begin(), n_rows.end(), int64_t{0}), 11);
      run_ranks(n_ranks, [&](World&) {
        const sw::Mesh mesh = sw::init_device_mesh("cpu", {n_ranks}, {"dp"});
        Words ours = with_values(Words(11, 6, 7, 2), values), dense = with_values(Words(11, 6, 7, 2), values);
        sw::fully_shard(ours, mesh, {.reshard_after_forward = reshards});
        EXPECT_TRUE(ours->table->weight.is_same(ours->head->weight));
        for (const at::Tensor& parameter : ours->parameters()) {
          ASSERT_TRUE(is_dtensor(parameter) && parameter.is_leaf() && parameter.requires_grad());
          EXPECT_EQ(placements(parameter), "[Shard(0)]");
        }
        expect_trained_alike(ours, dense, mesh, data, n_rows, fmt::format("{} ranks", n_ranks));
        EXPECT_TRUE(ours->table->weight.is_same(ours->head->weight));
      });
    }
}

/// Words whose blocks are called by forward().
struct UnitsImpl : torch::nn::Module {
  UnitsImpl() {
    register_module("table", table);
    register_module("layers", layers);
    register_module("head", head);
    for (int i = 0; i < 3; ++i) layers->push_back(MlpBlock(6, 7));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = table(ids);
    for (const auto& layer : *layers) {
      x = sw::forward(*layer->as<MlpBlock>(), x);
      if (fails) TORCH_CHECK(false, "on purpose");
    }
    return head(x);
  }

  torch::nn::Embedding table{11, 6};
  torch::nn::ModuleList layers;
  torch::nn::Linear head{6, 11};
  bool fails = false;
};
TORCH_MODULE(Units);

void shard_units(Units& model, const sw::Mesh& mesh, const sw::FullyShardOptions& options = {}) {
  for (const auto& layer : *model->layers) sw::fully_shard(*layer, mesh, options);
  sw::fully_shard(model, mesh, options);
}

TEST(FullyShardTest, InnerUnitsAreGatheredWhenTheyAreCalled) {
  const Values values = values_of(Units());
  const Data data = data_of(8, 11);
  for (const Rows& n_rows : {Rows{5, 3}, Rows{1, 0, 2, 5}}) {
    const auto n_ranks = static_cast<int64_t>(n_rows.size());
    run_ranks(n_ranks, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {n_ranks});
      Units ours = with_values(Units(), values), dense = with_values(Units(), values);
      shard_units(ours, mesh);
      expect_trained_alike(ours, dense, mesh, data, n_rows, "units");
      const Data own = data.part(n_rows, mesh.get_local_rank());
      at::Tensor loss;
      {
        const CommTrace trace;
        loss = loss_of(sw::forward(ours, own.ids), own.targets);
        EXPECT_EQ(trace.counts(), (Counts{{"all_gather", 2}}));  // the outermost module's, then the small ones together
      }
      const CommTrace trace;
      loss.backward();  // the outermost module's parameters were kept; the others are small
      EXPECT_EQ(trace.counts(), (Counts{{"all_gather", 1}, {"reduce_scatter", 4}}));
    });
  }
}

TEST(FullyShardTest, ComposesWithTensorParallelismOnAnotherDim) {
  const Values values = values_of(Units());
  const Rows n_rows{3, 4};
  const Data data = data_of(7, 11);
  for (const bool reshards : {true, false})
    run_ranks(4, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
      Units ours = with_values(Units(), values), dense = with_values(Units(), values);
      sw::parallelize_module(ours, mesh["tp"],
                             {{"layers.*.up", sw::ColwiseParallel()},
                              {"layers.*.down", sw::RowwiseParallel()},
                              {"table", sw::RowwiseParallel()}});
      shard_units(ours, mesh["dp"], {.reshard_after_forward = reshards});
      const auto& block = *ours->layers->ptr<MlpBlockImpl>(0);
      EXPECT_EQ(placements(block.up->weight), "[Shard(0), Shard(0)]");  // dim 0 of each rank's rows
      EXPECT_EQ(placements(block.down->weight), "[Shard(0), Shard(1)]");
      EXPECT_EQ(placements(block.norm->weight), "[Shard(0)]");
      for (int step = 0; step < 2; ++step) {
        ours->zero_grad();
        dense->zero_grad();
        const Data own = data.part(n_rows, mesh.get_local_rank("dp"));
        const at::Tensor logits = sw::forward(ours, own.ids), expected = dense(data.ids);
        EXPECT_EQ(spec_of(logits)->mesh(), MeshPtr(mesh["tp"]));
        loss_of(full_tensor(logits), own.targets).backward();
        loss_of(expected, data.targets).backward();
        expect_near(logits, part_of(expected.detach(), n_rows, mesh.get_local_rank("dp")), "logits");
        expect_mean_gradients(ours, dense, 2, "2 x 2");
      }
    });
}

TEST(FullyShardTest, AStyleOfAnInnerModuleIsGivenPlainPieces) {
  struct NetImpl : torch::nn::Module {
    NetImpl() { register_module("down", down); }
    at::Tensor forward(const at::Tensor& x) { return down(x); }
    sw::Parallelized<torch::nn::Linear> down{4, 3};
  };
  run_ranks(4, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    const torch::nn::ModuleHolder<NetImpl> model(std::make_shared<NetImpl>());
    sw::parallelize_module(model.ptr()->down, mesh["tp"], {{"", sw::RowwiseParallel().output_layouts(sw::Shard(-1))}});
    sw::fully_shard(model, mesh["dp"]);
    const int64_t n_rows = world.rank() / 2 + 1;
    const at::Tensor y = sw::forward(model, at::ones({n_rows, 2}));  // this rank's half of the features
    EXPECT_EQ(placements(y), "[Shard(1)]");
    EXPECT_EQ(y.sizes(), (Dims{n_rows, 3}));
  });
}

TEST(FullyShardTest, AnOrdinaryCallFindsParts) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      register_module("inner", inner);
      register_module("up", up);
    }
    at::Tensor forward(const at::Tensor& x) { return up(inner(x)); }
    torch::nn::Linear inner{4, 4}, up{4, 4};
  };
  run_ranks(4, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    const torch::nn::ModuleHolder<NetImpl> model(std::make_shared<NetImpl>());
    sw::parallelize_module(model, mesh["tp"], {{"inner", sw::ColwiseParallel()}, {"up", sw::RowwiseParallel()}});
    sw::fully_shard(model.ptr()->inner, mesh["dp"]);
    sw::fully_shard(model, mesh["dp"]);
    expect_error("or call the module as forward(module, x)",
                 error_of<c10::ValueError>([&] { model.ptr()->up->forward(at::ones({2, 4})); }));
    expect_error(
        "the ranks of its mesh did not compare their arguments. If fully_shard() took the parameter, call its module",
        error_of<c10::ValueError>([&] { sw::forward(model, at::ones({2, 4})); }));
    EXPECT_TRUE(are_sharded(*model));
  });
  const Values values = values_of(torch::nn::Linear(8, 4));
  const at::Tensor x = at::randn({2, 8}, at::kDouble);
  run_ranks(2, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const auto make = [&] { return with_values(torch::nn::Linear(8, 4), values); };
    torch::nn::Linear ours = make(), dense = make();
    sw::fully_shard(ours, mesh);
    ours(sw::distribute_tensor(x, mesh, {sw::Shard(0)}, std::nullopt)).square().sum().backward();  // of the whole batch
    dense(x).square().sum().backward();
    expect_same_parameters(*ours, *dense, "by the rules of operators");
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
    EXPECT_EQ(placements(ours->up->weight), "[Replicate(), Shard(0)]");
    sw::forward(ours, part_of(x, n_rows, world.rank())).square().sum().backward();
    dense(x).square().sum().backward();
    expect_mean_gradients(ours, dense, 4, "2 x 2");
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

// Each rank receives what it lacks of the weights, and of the gradients the terms of its own part, and a byte per parameter and rank.
TEST(FullyShardTest, SendsWeightsBeforeTheirUseAndGradientsOnce) {
  constexpr int64_t kRanks = 4, kBytes = 2 * 8 * 12 * 8, kLacks = kBytes * (kRanks - 1) / kRanks, kFlags = 3 * 2;
  const Values values = values_of(Pair());
  // bytes of a gather before the backward: all, none, or from the rank that has the other half
  for (const auto& [reshards, n_again] : std::vector<std::pair<sw::ReshardAfterForward, int64_t>>{
           {true, kLacks}, {false, 0}, {std::nullopt, 0}, {1, 0}, {2, kBytes / 2}, {4, kLacks}})
    run_ranks(kRanks, [&, reshards = reshards, n_again = n_again](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {kRanks});
      Pair model = with_values(Pair(), values);
      {
        const CommTrace trace;
        sw::fully_shard(model, mesh, {.reshard_after_forward = reshards});
        EXPECT_EQ(trace.total_count(), 0);
      }
      at::Tensor loss;
      {
        const CommTrace trace;
        loss = sw::forward(model, at::ones({5, 8}, at::kDouble)).square().sum();
        EXPECT_EQ(trace.bytes_received(), kLacks);
        EXPECT_EQ(trace.counts(), (Counts{{"all_gather", 1}}));
      }
      {
        const CommTrace trace;
        loss.backward();
        EXPECT_EQ(trace.bytes_received(), n_again + kLacks + kFlags);
        EXPECT_EQ(trace.total_count(), n_again > 0 ? 2 : 1);
      }
      for (const at::Tensor& parameter : model->parameters()) {
        EXPECT_TRUE(parameter.is_leaf());
        EXPECT_EQ(sw::to_local(parameter.grad()).nbytes(), kBytes / 2 / kRanks);
      }
      EXPECT_TRUE(model->up->weight.is_same(model->named_parameters()["up.weight"]));
    });
}

/// Keeps the memory of its whole weight in sight, and a sum that its output does not depend on.
struct SeenImpl : torch::nn::Module {
  SeenImpl() { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) {
    EXPECT_FALSE(is_dtensor(linear->weight));
    weight = linear->weight;
    hidden = linear(x).sum();
    return ignores ? x.sum() : linear(x);
  }
  bool is_there() const { return weight.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get(); }

  torch::nn::Linear linear{8, 12};
  at::Tensor weight, hidden;
  bool ignores = false;
};
TORCH_MODULE(Seen);

TEST(FullyShardTest, WhatWasGatheredIsFreedAfterTheForwardUnlessItIsKept) {
  for (const bool reshards : {true, false})
    run_ranks(2, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
      Seen model;
      sw::fully_shard(model, mesh, {.reshard_after_forward = reshards});
      const at::Tensor x = at::ones({3, 8}).requires_grad_();
      const at::Tensor loss = sw::forward(model, x).square().sum();
      EXPECT_EQ(model->is_there(), !reshards);
      EXPECT_EQ(are_sharded(*model), reshards);
      loss.backward();
      EXPECT_FALSE(model->is_there());
      EXPECT_TRUE(x.grad().defined() && are_sharded(*model));
      {
        const at::NoGradGuard no_grad;
        sw::forward(model, x);
      }
      EXPECT_EQ(model->is_there(), !reshards);
      EXPECT_TRUE(are_sharded(*model));
    });
}

TEST(FullyShardTest, WhatTheOutputsDoNotReachIsAnErrorInTheBackwardUnlessItIsKept) {
  for (const bool reshards : {true, false})
    run_ranks(2, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
      Seen model;
      model->ignores = true;
      sw::fully_shard(model, mesh, {.reshard_after_forward = reshards});
      sw::forward(model, at::ones({3, 8}).requires_grad_());
      const std::string error = error_of<c10::Error>([&] { model->hidden.backward(); });
      expect_error(reshards ? "a whole parameter is read while it is not gathered" : "", error);
      EXPECT_EQ(error.empty(), !reshards);
    });
}

TEST(FullyShardTest, ResultsOfOtherTypesKeepWhatWasGathered) {
  struct Pieces {
    at::Tensor y;
  };
  struct NetImpl : torch::nn::Module {
    NetImpl() { register_module("linear", linear); }
    Pieces forward(const std::vector<at::Tensor>& xs, const std::optional<at::Tensor>& bias) {
      return {linear(xs[0]) + linear(xs[1]) + *bias};
    }
    torch::nn::Linear linear{4, 2};
  };
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const torch::nn::ModuleHolder<NetImpl> model(std::make_shared<NetImpl>());
    sw::fully_shard(model, mesh, {.reshard_after_forward = true});
    const at::Tensor x = at::ones({3, 4}).requires_grad_(), other = at::ones({3, 4}).requires_grad_();
    const Pieces pieces = sw::forward(model, std::vector{x, other}, std::optional(at::ones({2}).requires_grad_()));
    EXPECT_TRUE(are_sharded(*model));
    pieces.y.sum().backward();
    EXPECT_TRUE(x.grad().defined() && other.grad().defined() && are_sharded(*model));
    EXPECT_EQ(placements(model.ptr()->linear->weight.grad()), "[Shard(0)]");
  });
}

TEST(FullyShardTest, AStepBeforeTheBackwardIsAnError) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    Pair model;
    sw::fully_shard(model, mesh, {.reshard_after_forward = true});
    const at::Tensor loss = sw::forward(model, at::ones({6, 8})).sum();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.add_(1);
    }
    expect_error("modified by an inplace operation", error_of<c10::Error>([&] { loss.backward(); }));
    sw::forward(model, at::ones({6, 8})).sum().backward();
  });
}

TEST(FullyShardTest, OptimizersOfTorchStepOnShardsAndClip) {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  using torch::optim::AdagradOptions, torch::optim::AdamOptions, torch::optim::RMSpropOptions, torch::optim::SGDOptions;
  const std::vector<Make> makes = {
      [](auto p) { return std::make_unique<torch::optim::SGD>(p, SGDOptions(0.1).momentum(0.9).nesterov(true)); },
      [](auto p) { return std::make_unique<torch::optim::Adam>(p, AdamOptions(0.1).amsgrad(true).weight_decay(0.1)); },
      [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, AdagradOptions(0.1)); },
      [](auto p) { return std::make_unique<torch::optim::RMSprop>(p, RMSpropOptions(0.1).centered(true)); },
  };
  for (const Make& make : makes)
    on_blocks(2, {}, [&](MlpBlock& ours, MlpBlock& dense, const at::Tensor& own, const at::Tensor& x) {
      const auto our_optimizer = make(ours->parameters()), dense_optimizer = make(dense->parameters());
      for (int step = 0; step < 2; ++step) {
        sw::forward(ours, own).square().sum().backward();
        (dense(x).square().sum() / 2).backward();
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
  for (const bool reshards : {true, false})
    on_blocks(2, {.reshard_after_forward = reshards},
              [](MlpBlock& ours, MlpBlock& dense, const at::Tensor& own, const at::Tensor& x) {
                ours->up->weight.set_requires_grad(false);
                dense->up->weight.set_requires_grad(false);
                {
                  const at::NoGradGuard no_grad;
                  const int64_t begin = own.storage_offset() / 6;
                  expect_near(sw::forward(ours, own), dense(x).narrow(0, begin, 3), "no grad");
                }
                sw::forward(ours, own).square().sum().backward();
                dense(x).square().sum().backward();
                EXPECT_FALSE(ours->up->weight.requires_grad());
                expect_mean_gradients(ours, dense, 2, "frozen");
              });
}

TEST(FullyShardTest, GradientsOfSeveralForwardsAndBackwardsAddUp) {
  for (const bool reshards : {true, false})
    on_blocks(2, {.reshard_after_forward = reshards},
              [](MlpBlock& ours, MlpBlock& dense, const at::Tensor& own, const at::Tensor& x) {
                const at::Tensor once = sw::forward(ours, own).square().sum(),
                                 twice = sw::forward(ours, own).cos().sum();
                once.backward({}, /*retain_graph=*/true);
                once.backward();
                twice.backward();
                (2 * dense(x).square().sum() + dense(x).cos().sum()).backward();
                expect_mean_gradients(ours, dense, 2, "two forwards");
              });
}

TEST(FullyShardTest, AnInputThatRequiresAGradientOrIsReturnedEndsTheBackwardOfItsCall) {
  struct SkipImpl : torch::nn::Module {
    SkipImpl() { register_module("linear", linear); }
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& same) {
      return {x, linear(x + same)};
    }
    torch::nn::Linear linear{6, 6};
  };
  const Values values = values_of(torch::nn::Linear(6, 6));
  run_ranks(2, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const torch::nn::ModuleHolder<SkipImpl> model(std::make_shared<SkipImpl>());
    torch::nn::Linear dense = with_values(torch::nn::Linear(6, 6), values);
    with_values(model.ptr()->linear, values);
    sw::fully_shard(model, mesh, {.reshard_after_forward = true});
    const at::Tensor x = at::ones({3, 6}, at::kDouble).requires_grad_(), y = x.detach().clone().requires_grad_();
    const auto [kept, mixed] = sw::forward(model, x, x);
    (kept.sum() + mixed.square().sum()).backward();
    (y.sum() + dense(y + y).square().sum()).backward();
    expect_near(x.grad(), y.grad(), "input");
    expect_near(model.ptr()->linear->weight.grad(), dense->weight.grad(), "weight");
    EXPECT_TRUE(are_sharded(*model));
  });
}

TEST(FullyShardTest, ARecurrentLayerReadsItsParametersAndItsLastStateIsAnOutput) {
  const auto make = [] { return torch::nn::LSTM(torch::nn::LSTMOptions(3, 5)); };
  const Values values = values_of(make());
  const at::Tensor x = at::randn({4, 5, 3}, at::kDouble);  // the sequence comes first
  run_ranks(2, [&](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    torch::nn::LSTM ours = with_values(make(), values), dense = with_values(make(), values);
    sw::fully_shard(ours, mesh, {.reshard_after_forward = true});
    const auto rows = [&](const at::Tensor& all) { return all.split_with_sizes({2, 3}, 1)[world.rank()].contiguous(); };
    const auto [y, state] = sw::forward(ours, rows(x));
    const auto wanted = dense->forward(x);
    expect_near(y, rows(std::get<0>(wanted).detach()), "y");
    std::get<0>(state).square().sum().backward();
    std::get<0>(std::get<1>(wanted)).square().sum().backward();
    expect_mean_gradients(ours, dense, 2, "lstm");
  });
}

TEST(FullyShardTest, ParametersAreSplitComputedAndIgnoredAsTheOptionsSay) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    torch::nn::Linear model(8, 4);
    const at::Tensor bias = model->bias;
    sw::fully_shard(
        model, mesh,
        {.shard_placement_fn = [](const at::Tensor&) { return sw::Shard(1, {5, 3}); },
         .mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat},
         .ignored_params = {bias}});
    EXPECT_TRUE(model->bias.is_same(bias));
    EXPECT_EQ(placements(model->weight), "[Shard(1, sizes=[5, 3])]");
    bias.set_data(bias.detach().to(at::kBFloat16));
    const at::Tensor y = sw::forward(model, at::ones({2, 8}));
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    y.sum().backward();
    EXPECT_EQ(model->weight.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(full_tensor(model->weight.grad()), at::full({4, 8}, 2.0)));
    EXPECT_FALSE(is_dtensor(bias.grad()));
  });
}

TEST(FullyShardTest, ModulesOfOneListShareTheirParameters) {
  struct NetImpl : torch::nn::Module {
    NetImpl() : head(table->weight) {
      register_module("table", table);
      register_module("head", head);
    }
    at::Tensor forward(const at::Tensor& ids) { return sw::forward(head, sw::forward(table, ids)); }
    torch::nn::Embedding table{9, 4};
    TiedHead head;
  };
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    const torch::nn::ModuleHolder<NetImpl> model(std::make_shared<NetImpl>()), alone(std::make_shared<NetImpl>());
    sw::fully_shard({model.ptr()->table.ptr(), model.ptr()->head.ptr()}, mesh, {.reshard_after_forward = true});
    sw::fully_shard(model, mesh);
    EXPECT_TRUE(model.ptr()->table->weight.is_same(model.ptr()->head->weight));
    const CommTrace trace;
    const at::Tensor y = sw::forward(model, at::arange(3));
    EXPECT_EQ(trace.counts(), (Counts{{"all_gather", 1}}));  // freed when both have run
    y.sum().backward();
    EXPECT_TRUE(model.ptr()->table->weight.is_same(model.ptr()->head->weight));
    EXPECT_EQ(placements(model.ptr()->head->weight.grad()), "[Shard(0)]");

    sw::fully_shard(alone.ptr()->table, mesh);
    expect_error("head.weight is shared with Embedding, which was fully sharded separately. Call it on all modules",
                 error_of<c10::ValueError>([&] { sw::fully_shard(alone, mesh); }));
  });
}

TEST(FullyShardTest, AFailedForwardPutsTheShardsBack) {
  const Values values = values_of(Units());
  const Data data = data_of(4, 11);
  run_ranks(2, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    Units ours = with_values(Units(), values), dense = with_values(Units(), values);
    shard_units(ours, mesh);
    for (int i = 0; i < 2; ++i) {
      ours->fails = true;
      expect_error("on purpose", error_of<c10::Error>([&] { sw::forward(ours, data.ids); }));
      EXPECT_TRUE(are_sharded(*ours));
      ours->fails = false;
      expect_trained_alike(ours, dense, mesh, data, {3, 1}, "after an error");
    }
  });
}

TEST(FullyShardTest, AFailedBackwardIsForgotten) {
  on_blocks(2, {}, [](MlpBlock& ours, MlpBlock& dense, const at::Tensor& own, const at::Tensor& x) {
    const at::Tensor y = sw::forward(ours, own);
    y.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "on purpose"); });
    expect_error("on purpose", error_of<c10::Error>([&] { y.sum().backward(); }));
    sw::forward(ours, own).square().sum().backward();
    dense(x).square().sum().backward();
    expect_mean_gradients(ours, dense, 2, "after an error");
  });
}

TEST(FullyShardTest, ACallOnARankOutsideTheMeshIsAnError) {
  run_ranks(3, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"dp"});
    torch::nn::Linear model(4, 3);
    sw::fully_shard(model, mesh);
    const std::string error = error_of<c10::ValueError>([&] { sw::forward(model, at::ones({2, 4})); });
    if (world.rank() == 2)
      expect_error("Linear is called on a rank that is not on (dp=2), over which its parameters are sharded", error);
    else
      EXPECT_EQ(error, "");
  });
}

TEST(FullyShardTest, WhatCannotBeShardedIsAnErrorBeforeAnythingIs) {
  run_ranks(4, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"}), line = sw::init_device_mesh("cpu", {4});
    const auto error = [](const auto& model, const sw::Mesh& on, const sw::FullyShardOptions& options = {}) {
      return error_of<c10::Error>([&] { sw::fully_shard(model, on, options); });
    };
    torch::nn::Sequential mixed(torch::nn::Linear(4, 4), Undeclared());
    expect_error("the parameter 1.scale is a member of Undeclared that is not known", error(mixed, mesh["dp"]));
    for (const at::Tensor& parameter : mixed->parameters()) EXPECT_FALSE(is_dtensor(parameter));
    expect_error("has 3 dims", error(Pair(), sw::init_device_mesh("cpu", {1, 2, 2})));
    expect_error("the list has no modules", error_of<c10::Error>([&] { sw::fully_shard({}, line); }));
    expect_error("ReLU has no parameters to shard", error(torch::nn::ReLU(), line));
    Pair ignored;
    expect_error("or all of them are in ignored_params",
                 error(ignored, line, {.ignored_params = ignored->parameters()}));
    torch::nn::ModuleList list{torch::nn::Linear(2, 2)};
    expect_error("ModuleList has no forward, before which", error(list, line));
    expect_error("no multiple of it. Give one of [1, 2, 4]", error(Pair(), line, {.reshard_after_forward = 3}));
    const auto third = [](const at::Tensor&) { return sw::Shard(2); };
    expect_error("up.weight is to be placed as Shard(2): it has the shape [12, 8]",
                 error(Pair(), line, {.shard_placement_fn = third}));
    const auto replica = [](const at::Tensor&) { return sw::Replicate(); };
    expect_error("which is no Shard", error(Pair(), line, {.shard_placement_fn = replica}));

    Pair model;
    sw::parallelize_module(model, mesh["tp"], {{"up", sw::ColwiseParallel()}});
    expect_error("fully_shard got the mesh (4): both must be slices of one mesh", error(model, line));
    sw::fully_shard(model, mesh["dp"]);
    expect_error("Pair is fully sharded already", error(model, mesh["tp"]));
    expect_error("weight is already in the group of Pair, a module that also has it. Call fully_shard on inner",
                 error(model->down, mesh["dp"]));
    Pair same_dim;
    sw::parallelize_module(same_dim, mesh["dp"], {{"down", sw::ColwiseParallel()}});
    expect_error("down.weight is already placed as [Shard(0)] on (dp=2", error(same_dim, mesh["dp"]));
    EXPECT_FALSE(is_dtensor(same_dim->up->weight));

    const at::Tensor rows = at::ones({2, 8});
    const at::Tensor batch = sw::distribute_tensor(rows, mesh["dp"], {sw::Shard(0)});
    expect_error("Pair got a DTensor placed as [Shard(0)] on (dp=2",
                 error_of<c10::ValueError>([&] { sw::forward(model, batch); }));
    EXPECT_EQ(sw::forward(model, rows).sizes(), (Dims{2, 8}));
  });
}

}  // namespace
}  // namespace shardwise::fully_shard_test
