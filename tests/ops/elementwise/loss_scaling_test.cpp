#include "runtime/api/dtensor.h"
#include "runtime/comm/events.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace shardwise::loss_scaling_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// found_inf after the check of `grads`, which are multiplied by a quarter.
double found(const std::vector<at::Tensor>& grads) {
  const auto options = at::device(grads[0].device()).dtype(at::kFloat);
  at::Tensor found_inf = at::zeros({}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(grads, found_inf, at::full({}, 0.25, options));
  return found_inf.item<double>();
}

TEST(LossScalingTest, UnscalesAsDense) {
  const auto compute = [](const Tensors& t) {
    const Tensors grads{t[0].clone(), t[1].clone()};
    EXPECT_EQ(found(grads), 0);
    return grads;
  };
  expect_same_as_dense("unscale", compute, {{5, 4}, {3}}, {.with_partial = false, .with_grad = false});
}

TEST(LossScalingTest, OneRanksInfinityIsFoundByAllWithOneMessage) {
  run_ranks(4, [](World& world) {
    const auto line = make_mesh({4}), grid = make_mesh({2, 2});
    for (const int64_t spoiled : {0, 1, 2}) {
      const std::vector<at::Tensor> grads{
          lay_out(at::ones({5, 4}), line, {Placement::shard(0, {1, 0, 4, 0})}),
          lay_out(at::ones({4, 4}), grid, {Placement::shard(0), Placement::shard(1)}),
          at::ones({2}),
      };
      at::Tensor piece = spoiled == 2 ? grads[2] : maybe_dtensor(grads[spoiled])->shards()[0];
      if (world.rank() == 2) piece.fill_(kInfinity);
      const CommTrace sent;
      EXPECT_EQ(found(grads), 1) << spoiled;
      EXPECT_EQ(sent.total_count(), 1);
      EXPECT_TRUE(spoiled == 1 || at::equal(full_tensor(grads[1]), at::full({4, 4}, 0.25)));
      EXPECT_GT(grads[2]._version(), 0);
    }
  });
}

TEST(LossScalingTest, ReplicasSendNothing) {
  run_ranks(2, [](World&) {
    const CommTrace sent;
    EXPECT_EQ(found({lay_out(at::ones({3}), make_mesh({2}), {Placement::replicate()}), at::ones({2})}), 0);
    EXPECT_EQ(found({lay_out(at::full({3}, kInfinity), make_mesh({2}), {Placement::replicate()})}), 1);
    EXPECT_EQ(sent.total_count(), 0);
  });
}

TEST(LossScalingTest, FiniteTermsOfAnInfiniteSum) {
  run_ranks(3, [](World&) {
    for (const double term : {1e30, 2e38}) {
      const auto mesh = make_mesh({3});
      const at::Tensor grad = from_local(at::full({2}, term, at::kFloat), mesh, {Placement::partial()});
      EXPECT_EQ(found({grad}), term == 2e38) << term;
      EXPECT_TRUE(at::allclose(full_tensor(grad), at::full({2}, 0.75 * term, at::kFloat)));
    }
  });
}

}  // namespace
}  // namespace shardwise::loss_scaling_test
