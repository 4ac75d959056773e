// Linear layers: values, gradients, and a pair of them sharded by columns, then rows.
#include "runtime/comm/events.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::linear_test {
namespace {

TEST(LinearTest, AnyBatchDimsAreDense) {
  const auto linear = [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); };
  const auto without_bias = [](const Tensors& t) { return at::linear(t[0], t[1]); };
  for (const Dims& input : {Dims{4}, Dims{5, 4}, Dims{3, 5, 4}, Dims{2, 1, 3, 4}, Dims{0, 4}, Dims{2, 0, 4}}) {
    expect_same_as_dense("linear", linear, {input, {6, 4}, {6}});
    expect_same_as_dense("linear without bias", without_bias, {input, {6, 4}});
  }
  expect_same_as_dense("a linear of one output", without_bias, {{3, 5, 4}, {4}});
  expect_same_as_dense("a linear of nothing", linear, {{3, 0}, {6, 0}, {6}});
}

TEST(LinearTest, GradientsAreDifferentiable) {
  const auto second = [](const Tensors& t) {
    const at::Tensor result = at::linear(t[0], t[1], t[2]);
    const Tensors first =
        torch::autograd::grad({result.mul(result).sum()}, {t[0], t[1], t[2]}, {}, true, /*create_graph=*/true);
    return at::cat({first[0].reshape({-1}), first[1].reshape({-1}), first[2]});
  };
  expect_same_as_dense("linear", second, {{3, 2, 4}, {5, 4}, {5}}, {.is_exact = false, .max_combinations = 10});
}

/// The collectives of a two-layer net on 4 ranks, forward and backward.
struct Traffic {
  std::map<std::string, int64_t> forward, backward;
};

TEST(LinearTest, ColumnsThenRowsNeedOneAllReduceEachWay) {
  const auto traffic = on_each_rank(4, [](World&) {
    const auto mesh = make_mesh({4});
    at::manual_seed(0);
    const auto input = lay_out(at::rand({2, 3, 8}), mesh, {Placement::replicate()}).requires_grad_();
    const auto w1 = lay_out(at::rand({10, 8}), mesh, {Placement::shard(0)}).requires_grad_();
    const auto b1 = lay_out(at::rand({10}), mesh, {Placement::shard(0)}).requires_grad_();
    const auto w2 = lay_out(at::rand({8, 10}), mesh, {Placement::shard(1)}).requires_grad_();
    const auto b2 = lay_out(at::rand({8}), mesh, {Placement::replicate()}).requires_grad_();
    Traffic seen;
    at::Tensor output;
    {
      CommTrace trace;
      output = redistribute(at::linear(at::relu(at::linear(input, w1, b1)), w2, b2), {Placement::replicate()});
      seen.forward = trace.counts();
    }
    CommTrace trace;
    const auto grads = torch::autograd::grad({output}, {input, w1, b1, w2, b2}, {at::ones_like(output)});
    const auto of_input = redistribute(grads[0], {Placement::replicate()});
    seen.backward = trace.counts();
    EXPECT_EQ(spec_of(grads[1]), spec_of(w1));
    EXPECT_EQ(spec_of(grads[2]), spec_of(b1));
    EXPECT_EQ(spec_of(grads[3]), spec_of(w2));
    EXPECT_EQ(spec_of(grads[4]), spec_of(b2));
    return seen;
  });
  const std::map<std::string, int64_t> one_all_reduce{{"all_reduce", 1}};
  for (const Traffic& of_rank : traffic) {
    EXPECT_EQ(of_rank.forward, one_all_reduce);
    EXPECT_EQ(of_rank.backward, one_all_reduce);
  }
}

TEST(LinearTest, BatchShardedOnAMiddleDimGathersNothing) {
  const auto train = [](const Tensors& t) {
    const at::Tensor output = at::linear(t[0], t[1].requires_grad_());
    return torch::autograd::grad({output}, {t[1]}, {output.detach()});
  };
  EXPECT_EQ(bytes_received(train, {{3, 6, 4}, {2, 4}}, {2}, {{Placement::shard(1)}, {Placement::replicate()}}), 0);
}

TEST(LinearTest, BiasOfThePartialResultOfRowsIsCountedOnce) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const auto output = at::linear(lay_out(at::ones({2, 5}), mesh, {Placement::shard(1)}),
                                   lay_out(at::ones({4, 5}), mesh, {Placement::shard(1)}),
                                   lay_out(at::full({4}, 10.F), mesh, {Placement::replicate()}));
    EXPECT_TRUE(spec_of(output)->placements()[0].is_partial());
    EXPECT_TRUE(full_tensor(output).equal(at::full({2, 4}, 15.)));
  });
}

}  // namespace
}  // namespace shardwise::linear_test
