// Tensor parallelism of torch::nn modules by a plan, against the dense module: values, gradients, layouts, messages, errors.
#include "shardwise/parallelize_module.h"

#include "runtime/comm/events.h"
#include "runtime/comm/order_check.h"
#include "tests/shardwise/models.h"
#include "tests/support/either_world.h"
#include "tests/support/ranks.h"

#include <c10/util/ScopeExit.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>

namespace sw = shardwise;

namespace shardwise::parallelize_module_test {
namespace {

const bool head_is_known = sw::declare_tensors<TiedHeadImpl>({&TiedHeadImpl::weight});

sw::ParallelizePlan plan_of_blocks() {
  return {{"layers.*.up", sw::ColwiseParallel()}, {"layers.*.down", sw::RowwiseParallel()}};
}

std::string placement_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? to_string(spec_of(tensor)->placements()) : "plain";
}

TEST(ParallelizeModuleTest, TrainsAsTheDenseModel) {
  ASSERT_TRUE(head_is_known);
  // words, width, hidden, layers
  for (const auto& [n_words, width, hidden, n_layers] :
       std::vector<std::array<int64_t, 4>>{{12, 8, 16, 2}, {11, 6, 7, 2}, {3, 2, 1, 1}}) {
    const Values values = values_of(Words(n_words, width, hidden, n_layers));
    const at::Tensor ids = at::randint(n_words, {5, 3}), targets = at::randint(n_words, {15});
    for (const int64_t n_ranks : {1, 2, 3})
      run_ranks(n_ranks, [&](World&) {
        const sw::Mesh mesh = sw::init_device_mesh("cpu", {n_ranks}, {"tp"});
        Words ours = with_values(Words(n_words, width, hidden, n_layers), values);
        Words dense = with_values(Words(n_words, width, hidden, n_layers), values);
        auto plan = plan_of_blocks();
        plan.push_back({"table", sw::RowwiseParallel()});  // and with it the head
        sw::parallelize_module(ours, mesh, plan);
        EXPECT_TRUE(ours->table->weight.is_same(ours->head->weight));
        EXPECT_TRUE(ours->table->weight.is_same(ours->named_parameters()["head.weight"]));
        torch::optim::AdamW our_optimizer(ours->parameters(), 0.01), dense_optimizer(dense->parameters(), 0.01);
        for (int step = 0; step < 3; ++step) {
          our_optimizer.zero_grad();
          dense_optimizer.zero_grad();
          const at::Tensor logits = sw::forward(ours, ids), expected = dense(ids);
          expect_near(logits, expected, "logits");
          const sw::DTensor our_targets = sw::distribute_tensor(targets, mesh);
          const at::Tensor loss = at::cross_entropy_loss(logits.view({15, n_words}), our_targets);
          loss.backward();
          at::cross_entropy_loss(expected.view({15, n_words}), targets).backward();
          expect_same_parameters(*ours, *dense, "step");
          our_optimizer.step();
          dense_optimizer.step();
        }
        expect_same_parameters(*ours, *dense, "end");
      });
  }
}

TEST(ParallelizeModuleTest, PlainNormsBetweenShardedLayersTrain) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace)
  const auto make = [] {
    return Sequential(Linear(LinearOptions(4, 6).bias(false)), BatchNorm1d(6), LayerNorm(LayerNormOptions({6})),
                      GroupNorm(2, 6), Linear(6, 4));
  };
  const Values values = values_of(make());
  const at::Tensor x = at::randn({5, 4}, at::kDouble);
  run_ranks(2, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"});
    Sequential ours = with_values(make(), values), dense = with_values(make(), values);
    sw::parallelize_module(ours, mesh, {{"0", sw::ColwiseParallel()}, {"4", sw::RowwiseParallel()}});
    torch::optim::AdamW our_optimizer(ours->parameters(), 0.01), dense_optimizer(dense->parameters(), 0.01);
    for (int step = 0; step < 2; ++step) {
      our_optimizer.zero_grad();
      dense_optimizer.zero_grad();
      sw::forward(ours, x).square().sum().backward();
      dense->forward(x).square().sum().backward();
      for (const auto& item : ours->named_parameters())
        EXPECT_EQ(is_dtensor(item.value().grad()), is_dtensor(item.value())) << item.key();
      expect_same_parameters(*ours, *dense, "step");
      our_optimizer.step();
      dense_optimizer.step();
    }
    expect_near(ours->named_buffers()["1.running_var"], dense->named_buffers()["1.running_var"], "variance");
  });
}

TEST(ParallelizeModuleTest, AnMlpSendsOneAllReduceEachWay) {
  run_ranks(4, [&](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {4}, {"tp"});
    torch::nn::Sequential mlp(torch::nn::Linear(8, 12), torch::nn::GELU(), torch::nn::Linear(12, 8));
    sw::parallelize_module(mlp, mesh, {{"0", sw::ColwiseParallel()}, {"2", sw::RowwiseParallel()}});
    const auto& up = *mlp->ptr<torch::nn::LinearImpl>(0);
    const auto& down = *mlp->ptr<torch::nn::LinearImpl>(2);
    EXPECT_EQ(placement_of(up.weight), "[Shard(0)]");
    EXPECT_EQ(placement_of(up.bias), "[Shard(0)]");
    EXPECT_EQ(placement_of(down.weight), "[Shard(1)]");
    EXPECT_EQ(placement_of(down.bias), "[Replicate()]");
    const sw::DTensor input = sw::ones({6, 8}, mesh).requires_grad_();
    const CommTrace forward;
    const sw::DTensor y = sw::DTensor(sw::forward(mlp, input)).redistribute({sw::Replicate()});
    EXPECT_EQ(forward.counts(), (std::map<std::string, int64_t>{{"all_reduce", 1}}));
    EXPECT_EQ(forward.bytes_received(), 2 * 3 * 6 * 8 * 4 / 4);
    const CommTrace backward;
    y.sum().backward();
    EXPECT_EQ(backward.counts(), (std::map<std::string, int64_t>{{"all_reduce", 1}}));
  });
}

TEST(ParallelizeModuleTest, StylesLayOutWhatForwardIsGivenAndGives) {
  run_ranks(3, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {3}, {"tp"});
    const at::Tensor x = at::arange(14, at::kDouble).view({2, 7});
    const at::Tensor piece = x.split_with_sizes({3, 3, 1}, 1)[world.rank()].contiguous();
    const auto linear = [] {
      const Values values{at::arange(35, at::kDouble).view({5, 7}) / 9, at::arange(5, at::kDouble)};
      return with_values(torch::nn::Linear(7, 5), values);
    };
    const at::Tensor dense = linear()(x);
    // style, input, what the output is, its sizes
    const std::vector<std::tuple<sw::ParallelStyle, at::Tensor, std::string>> cases = {
        {sw::ColwiseParallel(), x, "[Shard(1)]"},
        {sw::ColwiseParallel().output_layouts(sw::Replicate()), x, "[Replicate()]"},
        {sw::ColwiseParallel().input_layouts(sw::Shard(-1)), piece, "[Shard(1)]"},
        {sw::ColwiseParallel().output_layouts(sw::Shard(-1, {0, 2, 3})), x, "[Shard(1, sizes=[0, 2, 3])]"},
        {sw::RowwiseParallel(), piece, "[Replicate()]"},
        {sw::RowwiseParallel().input_layouts(sw::Shard(-1, {1, 0, 6})),
         x.split_with_sizes({1, 0, 6}, 1)[world.rank()].contiguous(), "[Replicate()]"},
        {sw::RowwiseParallel().output_layouts(sw::Shard(0)), piece, "[Shard(0)]"},
        {sw::RowwiseParallel().input_layouts(sw::Replicate()), x, "[Replicate()]"},
        {sw::RowwiseParallel().use_local_output(true), piece, "plain"},
        {[](const torch::nn::Module&) {
           return sw::ModuleLayouts{.parameters = {{"weight", sw::Shard(0, {0, 2, 3})}}};
         },
         x, "[Shard(1, sizes=[0, 2, 3])]"},
    };
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto& [style, input, expected] = cases[i];
      torch::nn::Linear layer = linear();
      sw::parallelize_module(layer, mesh, {{"", style}});
      const at::Tensor output = sw::forward(layer, input);
      EXPECT_EQ(placement_of(output), expected) << i;
      expect_near(output, dense, "case " + std::to_string(i));
    }
  });
}

TEST(ParallelizeModuleTest, APreparedModuleIsGivenWhatItWants) {
  run_ranks(2, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"});
    const at::Tensor x = at::arange(12, at::kDouble).view({1, 4, 3}),
                     part = x.narrow(1, world.rank() * 2, 2).contiguous();
    torch::nn::Sequential model(torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})), torch::nn::Linear(3, 4));
    model->to(at::kDouble);
    sw::parallelize_module(model, mesh,
                           {{"0", sw::SequenceParallel()},
                            {"1", sw::PrepareModuleInput({sw::Shard(1)}, {sw::Replicate()})},
                            {"1", sw::PrepareModuleOutput({std::nullopt}, {sw::Shard(0)}, false)},
                            {"1", sw::ColwiseParallel()}});
    auto& norm = *model->ptr<torch::nn::LayerNormImpl>(0);
    auto& linear = *model->ptr<torch::nn::LinearImpl>(1);
    EXPECT_EQ(placement_of(norm.weight), "[Replicate()]");
    const at::Tensor normed = sw::forward(norm, part);
    EXPECT_EQ(placement_of(normed), "[Shard(1)]");
    EXPECT_EQ(normed.sizes(), x.sizes());
    const CommTrace trace;
    const at::Tensor y = sw::forward(linear, to_local(normed));
    EXPECT_EQ(placement_of(y), "[Shard(2)]");
    EXPECT_EQ(trace.total_count(), 1);  // the agreement on the pieces' sizes is not counted
    expect_near(y, at::linear(at::layer_norm(x, {3}), full_tensor(linear.weight), full_tensor(linear.bias)).detach(),
                "y");
  });
}

TEST(ParallelizeModuleTest, AHolderCallsAsForwardDoes) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"});
    sw::Parallelized<torch::nn::Linear> layer(with_values(torch::nn::Linear(3, 4), {at::eye(4, 3), at::ones({4})}));
    torch::nn::Sequential model;
    model->push_back("down", layer);
    const at::Tensor x = at::ones({2, 3}, at::kDouble), dense = layer(x);  // nothing is distributed yet
    sw::parallelize_module(model, mesh, {{"down", sw::RowwiseParallel().input_layouts(sw::Replicate())}});
    const at::Tensor y = layer(x);
    EXPECT_EQ(placement_of(y), "[Replicate()]");
    expect_near(y, dense.detach(), "y");
  });
}

TEST(ParallelizeModuleTest, PlainArgumentsMustBeEqualWhereTheyMeetParameters) {
  run_ranks(2, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"});
    torch::nn::Linear layer(3, 4);
    sw::parallelize_module(layer, mesh, {{"", sw::ColwiseParallel()}});
    const at::Tensor own = at::full({2, 3}, static_cast<float>(world.rank()));
    expect_error("ranks 0 and 1 called Linear with different args[0]",
                 error_of<c10::ValueError>([&] { sw::forward(layer, own); }));
    EXPECT_TRUE(is_dtensor(sw::forward(layer, at::ones({2, 3}))));  // and the scope of the failed call is closed
  });
}

TEST(ParallelizeModuleTest, AModuleThatIsCalledAsUsualIsToldOfForward) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"});
    torch::nn::Linear layer(3, 4);
    sw::parallelize_module(layer, mesh, {{"", sw::ColwiseParallel()}});
    expect_error("or call the module as forward(module, x) of shardwise/modules.h",
                 error_of<c10::ValueError>([&] { layer(at::ones({2, 3})); }));
    const torch::nn::Linear& held = layer;  // as members of a const object are
    EXPECT_TRUE(is_dtensor(sw::forward(held, at::ones({2, 3}))));
  });
}

TEST(ParallelizeModuleTest, AForwardMayGiveNothing) {
  struct SinkImpl : torch::nn::Module {
    SinkImpl() { register_module("linear", linear); }
    void forward(const at::Tensor& x) { sum = linear(x).sum(); }
    torch::nn::Linear linear{3, 4};
    at::Tensor sum;
  };
  run_ranks(2, [](World&) {
    const torch::nn::ModuleHolder<SinkImpl> model(std::make_shared<SinkImpl>());
    sw::fully_shard(model, sw::init_device_mesh("cpu", {2}));
    sw::forward(model, at::ones({2, 3}));
    model.ptr()->sum.backward();  // what was gathered was kept
    EXPECT_TRUE(model.ptr()->linear->weight.grad().defined());
  });
}

TEST(ParallelizeModuleTest, RanksThatAreThreadsNeedAModelEach) {
  torch::nn::Linear shared(4, 4);
  expect_error("another thread. Ranks that are threads need a model each",
               error_of_ranks(3, [&](World&) { sw::fully_shard(shared, sw::init_device_mesh("cpu", {3})); }));
  std::vector<std::optional<sw::Mesh>> meshes(2);
  run_ranks(2, [&](World& world) {
    meshes[world.rank()] = sw::init_device_mesh("cpu", {2});
    const at::Tensor all = sw::ones({2}, *meshes[world.rank()]).full_tensor();
    sw::distribute_tensor(all, *meshes[world.rank()]);  // both are there
    torch::nn::Linear own(4, 4);
    expect_error(fmt::format("rank {} of another thread made the mesh (2)", 1 - world.rank()),
                 error_of<c10::ValueError>([&] { sw::parallelize_module(own, *meshes[1 - world.rank()], {}); }));
    sw::distribute_tensor(all, *meshes[world.rank()]);
  });
}

struct ManyArgumentsImpl : torch::nn::Module {
  enum class Mode { kPlus, kMinus };
  struct Opaque {
    at::Tensor held;
  };

  ManyArgumentsImpl() { register_module("linear", linear); }
  std::tuple<at::Tensor, int64_t, at::Tensor> forward(const at::Tensor& x, const at::Tensor& mask, double factor,
                                                      const std::string& name, const std::vector<at::Tensor>& more,
                                                      std::optional<int64_t> offset, Mode mode,
                                                      const std::vector<double>& shifts = {},
                                                      const Opaque& opaque = {}) {
    at::Tensor y = linear(x) * factor + static_cast<double>(name.size()) + offset.value_or(0);
    if (mask.defined()) y = y * mask;
    for (const at::Tensor& each : more) y = mode == Mode::kPlus ? y + each : y - each;
    if (opaque.held.defined()) y = y + opaque.held;
    for (const double shift : shifts) y = y + shift;
    return {y, more.size(), x};
  }

  torch::nn::Linear linear{3, 4};
};
TORCH_MODULE(ManyArguments);

TEST(ParallelizeModuleTest, ArgumentsOfAnyKindArePassedOnAndCompared) {
  const Values values = values_of(ManyArguments());
  const bool was_on = set_order_check(true);  // each call is compared
  const auto restore = c10::make_scope_exit([&] { set_order_check(was_on); });
  run_ranks(2, [&](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"});
    ManyArguments ours = with_values(ManyArguments(), values), dense = with_values(ManyArguments(), values);
    sw::parallelize_module(ours, mesh, {{"linear", sw::ColwiseParallel()}});
    const at::Tensor x = at::ones({2, 3}, at::kDouble), mask = at::tensor({1.0, 0.0, 1.0, 1.0}, at::kDouble);
    const std::vector<at::Tensor> more(2, at::ones({4}, at::kDouble));
    using Mode = ManyArgumentsImpl::Mode;
    const auto [y, n, back] = sw::forward(ours, x, mask, 2, "abc", more, std::nullopt, Mode::kMinus);
    const auto wanted = dense->forward(x, mask, 2, "abc", more, std::nullopt, Mode::kMinus);
    expect_near(y, std::get<0>(wanted).detach(), "y");
    EXPECT_EQ(n, 2);
    EXPECT_FALSE(is_dtensor(back));
    EXPECT_TRUE(is_dtensor(std::get<0>(sw::forward(ours, x, at::Tensor(), 2, "abc", more, 7, Mode::kPlus))));

    const double own = static_cast<double>(world.rank());
    const std::vector<at::Tensor> others{more[0], more[1] * own};
    const auto error = [&](const auto&... args) {
      return error_of<c10::ValueError>([&] { sw::forward(ours, x, args...); });
    };
    expect_error("different args[2]", error(mask, own, "abc", more, std::nullopt, Mode::kPlus));
    expect_error("different args[4][1]", error(mask, 2, "abc", others, std::nullopt, Mode::kPlus));
    expect_error("different args[5]", error(mask, 2, "abc", more, std::optional<int64_t>(world.rank()), Mode::kPlus));
    expect_error("different args[6]", error(mask, 2, "abc", more, std::nullopt, static_cast<Mode>(world.rank())));
    const std::vector<double> same{0.5, 1.0 / 3}, shifts{0.5, 1.0 / 3 + own * 1e-12};
    EXPECT_TRUE(is_dtensor(std::get<0>(sw::forward(ours, x, mask, 2, "abc", more, std::nullopt, Mode::kPlus, same))));
    expect_error("different args[2]", error(mask, 1.0 / 3 + own * 1e-12, "abc", more, std::nullopt, Mode::kPlus));
    expect_error("different args[7]", error(mask, 2, "abc", more, std::nullopt, Mode::kPlus, shifts));
    const ManyArgumentsImpl::Opaque opaque{at::full({4}, own)};  // not looked into
    expect_error("got a torch.Tensor of shape [4] next to a DTensor, and the ranks have different ones",
                 error(mask, 2, "abc", more, std::nullopt, Mode::kPlus, same, opaque));
  });
}

TEST(ParallelizeModuleTest, WhatAPlanCannotMeanIsAnErrorBeforeAnythingIsSharded) {
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"}),
                   grid = sw::init_device_mesh("cpu", {1, 2}, {"dp", "tp"});
    Words model(6, 4, 8, 1);
    const auto error = [&](const sw::ParallelizePlan& plan, const sw::Mesh& on) {
      return error_of<c10::ValueError>([&] { sw::parallelize_module(model, on, plan); });
    };
    expect_error("the plan names 'layers.*.upp', and Words has no such submodule. It has table, layers, layers.0",
                 error({{"layers.*.up", sw::ColwiseParallel()}, {"layers.*.upp", sw::ColwiseParallel()}}, mesh));
    expect_error("Pass the dim for them to use: mesh[\"tp\"]", error({{"table", sw::ColwiseParallel()}}, grid));
    const sw::ParallelStyle columns = [](const torch::nn::Module&) {
      return sw::ModuleLayouts{.parameters = {{"weight", sw::Shard(1)}}};
    };
    expect_error(
        "table.weight and head.weight are one parameter, which one style lays out as Shard(0) and another as Shard(1)",
        error({{"table", sw::RowwiseParallel()}, {"head", columns}}, mesh));
    const sw::ParallelStyle nothing = [](const torch::nn::Module&) {
      return sw::ModuleLayouts{.parameters = {{"wait", sw::Shard(0)}}};
    };
    expect_error("a style names the parameter table.wait", error({{"table", nothing}}, mesh));
    const sw::ParallelStyle deep = [](const torch::nn::Module&) {
      return sw::ModuleLayouts{.parameters = {{"weight", sw::Shard(2)}}};
    };
    expect_error("table.weight of shape [6, 4] cannot be Shard(2)", error({{"table", deep}}, mesh));
    expect_error("ColwiseParallel shards torch::nn::Linear and torch::nn::Embedding, not LayerNorm",
                 error_of<c10::NotImplementedError>(
                     [&] { sw::parallelize_module(model, mesh, {{"layers.0.norm", sw::ColwiseParallel()}}); }));
    expect_error("got 2 layouts and 1", error_of<c10::ValueError>([] {
                   sw::PrepareModuleInput({sw::Shard(0), std::nullopt}, {sw::Replicate()});
                 }));
    for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(is_dtensor(parameter));

    Undeclared undeclared;
    const sw::ParallelStyle scale = [](const torch::nn::Module&) {
      return sw::ModuleLayouts{.parameters = {{"scale", sw::Shard(0)}}};
    };
    expect_error("declare_tensors<shardwise::UndeclaredImpl>({&shardwise::UndeclaredImpl::scale})",
                 error_of<c10::ValueError>([&] { sw::parallelize_module(undeclared, mesh, {{"", scale}}); }));
    sw::parallelize_module(model, mesh, {{"table", sw::RowwiseParallel()}});
    expect_error("table.weight is distributed already", error({{"table", sw::RowwiseParallel()}}, mesh));
  });
}

TEST(ParallelizeModuleTest, AMeshDimThatIsNotThatOfTheOtherStylesIsAnErrorBeforeAnythingIsSharded) {
  run_ranks(4, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    const auto error = [&](const auto& model, const char* mesh_dim, const sw::ParallelizePlan& plan) {
      return error_of<c10::ValueError>([&] { sw::parallelize_module(model, mesh[mesh_dim], plan); });
    };
    const auto make = [] { return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::ReLU()); };
    const sw::ParallelStyle prepare = sw::PrepareModuleInput({sw::Shard(0)}, {sw::Replicate()});
    const sw::ParallelizePlan at_root{{"", prepare}}, at_activation{{"1", prepare}}, at_layer{{"0", prepare}};
    {
      auto model = make();
      sw::fully_shard(model, mesh["dp"]);
      for (const auto& plan : {at_root, at_activation})
        expect_error("Sequential is fully sharded over (dp=2", error(model, "tp", plan));
    }
    {
      auto model = make();
      sw::fully_shard(*model[0], mesh["dp"]);
      expect_error("0 (Linear) is fully sharded over (dp=2", error(model, "tp", at_layer));
      expect_error("0 (Linear) is fully sharded over (dp=2", error(model, "tp", at_root));
      sw::parallelize_module(model, mesh["tp"], at_activation);
    }
    {
      auto model = make();
      sw::parallelize_module(model, mesh["tp"], at_root);
      expect_error("calls of Sequential are laid out over (tp=2", error(model, "dp", at_root));
    }
    {
      auto model = make();
      sw::parallelize_module(model, mesh["tp"], {{"0", sw::ColwiseParallel()}});
      expect_error("0.weight is sharded over (tp=2", error(model, "dp", at_root));
      sw::parallelize_module(model, mesh["tp"], at_root);
    }
  });
}

TEST(ParallelizeModuleTest, WhatDoesNotFitOneParameterIsAnErrorBeforeAnotherIsSharded) {
  run_ranks(4, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {4});
    torch::nn::Linear model(10, 3);
    const auto error = [&](const sw::Placement& bias) {
      const sw::ParallelStyle style = [&](const torch::nn::Module&) {
        return sw::ModuleLayouts{.parameters = {{"weight", sw::Shard(0)}, {"bias", bias}}};
      };
      return error_of<c10::ValueError>([&] { sw::parallelize_module(model, mesh, {{"", style}}); });
    };
    expect_error("[parallelize_module] bias: [layout]", error(sw::Shard(0, {3, 1, 0, 0})));
    if (world.rank() == 1) model->bias.set_data(at::ones({2}));
    expect_error(
        "[parallelize_module] bias: [distribute_tensor] rank 0 gives a tensor Float [3], but rank 1 gives a tensor "
        "Float [2].",
        error(sw::Shard(0)));
    EXPECT_FALSE(is_dtensor(model->weight));
    expect_error("the plan has an empty function as the style of ''",
                 error_of<c10::ValueError>([&] { sw::parallelize_module(model, mesh, {{"", nullptr}}); }));
  });
}

TEST(ParallelizeModuleTest, WhatRequiresAGradientIsAsOnTheFirstRank) {
  run_ranks(2, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    torch::nn::Linear model(4, 2);
    model->bias.requires_grad_(false);
    if (world.rank() == 1) {
      model->weight.requires_grad_(false);
      model->bias.requires_grad_(true);
    }
    sw::parallelize_module(model, mesh, {{"", sw::ColwiseParallel()}});
    EXPECT_TRUE(model->weight.requires_grad());
    EXPECT_FALSE(model->bias.requires_grad());
    sw::forward(model, torch::ones({3, 4})).sum().backward();
    EXPECT_TRUE(is_dtensor(model->weight.grad()));
  });
}

/// A head whose weight is the table's by assignment, as C++ programs tie them: what it registered stays behind.
struct AssignedHeadImpl : torch::nn::Module {
  AssignedHeadImpl() {
    register_module("head", head);  // before the table
    register_module("table", table);
    head->weight = table->weight;
  }
  at::Tensor forward(const at::Tensor& ids) { return head(table(ids)); }

  torch::nn::Linear head{torch::nn::LinearOptions(4, 9).bias(false)};
  torch::nn::Embedding table{9, 4};
};
TORCH_MODULE(AssignedHead);

TEST(ParallelizeModuleTest, AParameterThatWasAssignedToAnotherMemberStaysShared) {
  const Values values = values_of(AssignedHead());
  const at::Tensor ids = at::arange(6).view({2, 3});
  using Shard = std::function<void(AssignedHead&, const sw::Mesh&)>;
  const std::vector<Shard> shards = {
      [](auto& model, const auto& mesh) {
        sw::parallelize_module(model, mesh["tp"], {{"table", sw::RowwiseParallel()}});
      },
      [](auto& model, const auto& mesh) {
        sw::parallelize_module(model, mesh["tp"], {{"head", sw::ColwiseParallel()}});
      },
      [](auto& model, const auto& mesh) { sw::fully_shard(model, mesh["tp"]); },
      [](auto& model, const auto& mesh) {
        sw::parallelize_module(model, mesh["tp"], {{"table", sw::RowwiseParallel()}});
        sw::fully_shard(model, mesh["dp"]);
      },
  };
  for (size_t i = 0; i < shards.size(); ++i)
    run_ranks(2, [&](World&) {
      const sw::Mesh mesh = sw::init_device_mesh("cpu", {1, 2}, {"dp", "tp"});
      AssignedHead ours = with_values(AssignedHead(), values), dense = with_values(AssignedHead(), values);
      ours->head->weight = ours->table->weight;  // to() gave each its own
      dense->head->weight = dense->table->weight;
      shards[i](ours, mesh);
      ASSERT_TRUE(is_dtensor(ours->table->weight)) << i;
      EXPECT_TRUE(ours->table->weight.is_same(ours->head->weight)) << i;
      torch::optim::AdamW our_optimizer({ours->table->weight}, 0.01), dense_optimizer({dense->table->weight}, 0.01);
      const bool is_batch = i == 2;  // of which each rank has a part; gradients are the mean over the ranks
      for (int step = 0; step < 2; ++step) {
        our_optimizer.zero_grad();
        dense_optimizer.zero_grad();
        const int64_t place = mesh.get_local_rank("tp");
        const at::Tensor y = sw::forward(ours, is_batch ? ids.narrow(0, place, 1).contiguous() : ids);
        (y.square().sum() * (is_batch ? 2 : 1)).backward();
        dense(ids).square().sum().backward();
        expect_near(ours->table->weight.grad(), dense->table->weight.grad(), "gradient");
        our_optimizer.step();
        dense_optimizer.step();
        expect_near(ours->table->weight, dense->table->weight.detach(), "table");
      }
      EXPECT_TRUE(ours->table->weight.is_same(ours->head->weight)) << i;
    });
  run_ranks(2, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2});
    AssignedHead model;
    expect_error(
        "the parameter weight is registered in Linear, whose member is another tensor, which is no parameter here",
        error_of<c10::ValueError>([&] { sw::fully_shard(model->head, mesh); }));
  });
}

TEST(ParallelizeModuleTest, PlainPiecesOfAnySizesAreToldApart) {
  run_ranks(4, [](World& world) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {4});
    torch::nn::Linear layer(4, 8);
    sw::parallelize_module(layer, mesh, {{"", sw::ColwiseParallel().input_layouts(sw::Shard(0))}});
    const auto rank = world.rank();
    EXPECT_EQ(sw::forward(layer, at::ones({rank == 0 ? 3 : 2, 4})).sizes(), (Dims{9, 8}));
    expect_error("[forward] rank 0 has a part Float [2, 5] along dim 0, but rank 1 has a part Float [2, 4]",
                 error_of<c10::ValueError>([&] { sw::forward(layer, at::ones({2, rank == 0 ? 5 : 4})); }));

    torch::nn::Linear row(8, 4);
    sw::parallelize_module(row, mesh, {{"", sw::RowwiseParallel()}});
    expect_error("Linear got plain pieces placed as Shard(-1), which have 32 features together, but it takes 8",
                 error_of<c10::ValueError>([&] { sw::forward(row, at::ones({2, 8})); }));
    EXPECT_EQ(sw::forward(row, at::ones({2, 2})).sizes(), (Dims{2, 4}));
    torch::nn::Linear named_from_zero(8, 4);
    sw::parallelize_module(named_from_zero, mesh, {{"", sw::RowwiseParallel().input_layouts(sw::Shard(1))}});
    expect_error("Linear got plain pieces placed as Shard(1), which have 32 features together, but it takes 8",
                 error_of<c10::ValueError>([&] { sw::forward(named_from_zero, at::ones({2, 8})); }));

    torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({4}));
    sw::parallelize_module(norm, mesh, {{"", sw::SequenceParallel(0)}});
    EXPECT_EQ(full_tensor(sw::forward(norm, at::ones({rank == 0 ? 3 : 2, 4}))).sizes(), (Dims{9, 4}));
    torch::nn::LayerNorm deep(torch::nn::LayerNormOptions({4}));
    sw::parallelize_module(deep, mesh, {{"", sw::SequenceParallel(2)}});
    expect_error("[forward] rank 0 has a part Float [2, 4], which has no dim 2. Give parts that have it.",
                 error_of<c10::IndexError>([&] { sw::forward(deep, at::ones({2, 4})); }));
  });
}

TEST(ParallelizeModuleTest, EveryMemberOfTorchsLayersIsKnown) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace)
  Sequential model(Linear(2, 2), Conv1d(2, 2, 1), Conv2d(2, 2, 1), Conv3d(2, 2, 1), ConvTranspose1d(2, 2, 1),
                   ConvTranspose2d(2, 2, 1), ConvTranspose3d(2, 2, 1), BatchNorm1d(2), BatchNorm2d(2), BatchNorm3d(2),
                   InstanceNorm1d(InstanceNorm1dOptions(2).affine(true)), LayerNorm(LayerNormOptions({2})),
                   GroupNorm(1, 2), PReLU(), Embedding(2, 2), EmbeddingBag(2, 2), Bilinear(2, 2, 2), LSTM(2, 2),
                   GRU(2, 2), RNN(2, 2), LSTMCell(2, 2), GRUCell(2, 2), RNNCell(2, 2), MultiheadAttention(2, 1));
  const auto parameters = sw::parameters_of(*model);
  EXPECT_GT(parameters.size(), 50);
  for (const auto& places : parameters) {
    ASSERT_EQ(places.size(), 1);
    EXPECT_TRUE(places[0].is_replaceable()) << places[0].full_name() << " of " << sw::kind_of(*places[0].module);
    const at::Tensor other = at::zeros_like(places[0].tensor());
    places[0].replace(other);
    EXPECT_TRUE(places[0].is_replaceable());  // the member followed
    EXPECT_TRUE(places[0].tensor().is_same(other));
  }
}

}  // namespace
}  // namespace shardwise::parallelize_module_test
