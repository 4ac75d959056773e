#include "runtime/api/dtensor.h"
#include "tests/support/dense.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace shardwise::reductions_test {
namespace {

TEST(ReductionsTest, RulesSayHowPartsCombine) {
  EXPECT_EQ(to_string(rule("aten::sum.dim_IntList")), "reduction sum linear");
  EXPECT_EQ(to_string(rule("aten::amax")), "reduction max, Partial(max) passes");
  EXPECT_EQ(to_string(rule("aten::all.dim")), "reduction min");
  EXPECT_EQ(to_string(rule("aten::argmax")), "reduction of whole dims");
}

TEST(ReductionsTest, Sum) {
  for (const Dims& sizes : {Dims{}, Dims{0}, Dims{1}, Dims{2}, Dims{5, 4}, Dims{3, 0}, Dims{2, 3, 2}})
    expect_same_as_dense("sum", [](const Tensors& t) { return t[0].sum(); }, {sizes});
  expect_same_as_dense("sum of rows", [](const Tensors& t) { return t[0].sum(0); }, {{5, 4}});
  expect_same_as_dense("sum of columns", [](const Tensors& t) { return t[0].sum(-1, /*keepdim=*/true); }, {{5, 4}});
  expect_same_as_dense("sum of two dims", [](const Tensors& t) { return t[0].sum(at::IntArrayRef{0, 2}); },
                       {{2, 3, 5}});
  expect_same_as_dense("sum of no rows", [](const Tensors& t) { return t[0].sum(0); }, {{0, 4}});
  expect_same_as_dense("sum of integers", [](const Tensors& t) { return t[0].sum(0); }, {{5, 4}}, {.dtype = at::kInt});
}

TEST(ReductionsTest, MeanOfUnevenShards) {
  expect_same_as_dense("mean", [](const Tensors& t) { return t[0].mean(); }, {{5, 4}}, {.is_exact = false});
  expect_same_as_dense("mean of rows", [](const Tensors& t) { return t[0].mean(0, true); }, {{5, 4}},
                       {.is_exact = false});
  expect_same_as_dense("mean of two dims", [](const Tensors& t) { return t[0].mean(at::IntArrayRef{0, -1}); },
                       {{2, 3, 5}}, {.is_exact = false});
  expect_same_as_dense("mean of nothing", [](const Tensors& t) { return t[0].mean(1); }, {{5, 0}});
}

TEST(ReductionsTest, MeanOfIntegersIsAnError) {
  const std::string error = error_of_ranks(3, [](World&) {
    auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{3}, {0, 1, 2}});
    full({5}, 1, mesh, {Placement::shard(0)}, at::kLong).mean();
  });
  expect_error("[aten::mean] the mean of Long cannot be Long. Pass a floating dtype=.", error);
}

TEST(ReductionsTest, LargestAndSmallest) {
  expect_same_as_dense("amax", [](const Tensors& t) { return t[0].amax(0); }, {{5, 4}});
  expect_same_as_dense("amax of all", [](const Tensors& t) { return t[0].amax(); }, {{2, 3, 2}});
  expect_same_as_dense("amin", [](const Tensors& t) { return t[0].amin({0, 1}, true); }, {{5, 4}});
  expect_same_as_dense("max", [](const Tensors& t) { return t[0].max(); }, {{5, 4}}, {.with_grad = false});
  expect_same_as_dense("amax of integers", [](const Tensors& t) { return t[0].amax(0); }, {{2, 4}},
                       {.dtype = at::kLong});
}

TEST(ReductionsTest, ProductsAndTruths) {
  expect_same_as_dense("prod", [](const Tensors& t) { return t[0].prod(0); }, {{2, 4}},
                       {.low = 1, .high = 16, .with_grad = false});
  const auto truths = [](const Tensors& t) {
    return Tensors{at::any(t[0] > 0), at::all(t[0] > 0, 0), at::any(t[0] > 0, 1)};
  };
  expect_same_as_dense("any, all", truths, {{5, 4}}, {.low = -2, .high = 2, .with_grad = false});
}

TEST(ReductionsTest, WhatDoesNotCombineGathersItsDims) {
  expect_same_as_dense("argmax", [](const Tensors& t) { return t[0].argmax(0); }, {{5, 4}}, {.with_grad = false});
  expect_same_as_dense("max.dim",
                       [](const Tensors& t) {
                         auto [values, at] = t[0].max(1);
                         return Tensors{values, at};
                       },
                       {{5, 4}}, {.with_grad = false});
  expect_same_as_dense("var", [](const Tensors& t) { return t[0].var(1); }, {{5, 4}}, {.is_exact = false});
  expect_same_as_dense("logsumexp", [](const Tensors& t) { return t[0].logsumexp(1); }, {{5, 4}}, {.is_exact = false});
}

TEST(ReductionsTest, VectorNorms) {
  for (const double p : {0.0, 1.0, 2.0, 3.0, static_cast<double>(INFINITY), -static_cast<double>(INFINITY)})
    expect_same_as_dense("norm", [p](const Tensors& t) { return at::linalg_vector_norm(t[0], p, at::IntArrayRef{0}); },
                         {{5, 4}}, {.low = 1, .is_exact = false, .max_combinations = 20});
  expect_same_as_dense("norm of all", [](const Tensors& t) { return at::linalg_vector_norm(t[0]); }, {{5, 4}},
                       {.is_exact = false});
}

TEST(ReductionsTest, NormsOfEveryOrderAndTheirGradientsAreDense) {
  constexpr double kInfinity = INFINITY;
  for (const double p : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0, kInfinity, -kInfinity}) {
    const auto of_rows = [p](const Tensors& t) { return at::linalg_vector_norm(t[0], p, at::IntArrayRef{0}, true); };
    expect_same_as_dense(fmt::format("norm {}", p), of_rows, {{5, 3}},
                         {.meshes = {{3}, {2, 2}}, .low = 1, .is_exact = false, .max_combinations = 10});
    if (p == 0) continue;  // torch's own has no gradient there
    expect_same_as_dense("dist", [p](const Tensors& t) { return at::dist(t[0], t[1], p); }, {{5, 3}, {5, 3}},
                         {.meshes = {{3}}, .is_exact = false, .max_combinations = 10});
  }
}

// Largest values that several ranks have share the gradient; at zeros it is torch's subgradient, not 0 by 0.
TEST(ReductionsTest, GradientsOfNormsAtTiesAndZerosAreDense) {
  constexpr double kInfinity = INFINITY;
  for (const double p : {0.0, 1.0, 2.0, 3.0, kInfinity, -kInfinity})
    for (const auto& [low, high] : {std::pair(0, 1), std::pair(2, 3), std::pair(-1, 2)}) {
      const auto norms = [p](const Tensors& t) {
        return Tensors{at::norm(t[0], p), at::linalg_vector_norm(t[0], p, at::IntArrayRef{0})};
      };
      expect_same_as_dense(fmt::format("norm {} of {} to {}", p, low, high), norms, {{4, 2}},
                           {.meshes = {{3}}, .low = low, .high = high, .is_exact = false, .with_partial = false});
    }
}

TEST(ReductionsTest, TraceIsDense) {
  expect_same_as_dense("trace", [](const Tensors& t) { return at::trace(t[0]); }, {{5, 4}});
  const auto trace = [](const Tensors& t) { return Tensors{at::trace(t[0])}; };
  EXPECT_EQ(bytes_received(trace, {{5, 4}}, {2, 2}, {{Placement::shard(0), Placement::shard(1)}}), 0);
}

TEST(ReductionsTest, StepsHaveGradientsOfZeroLaidOutAsTheyAre) {
  expect_same_as_dense("sgn", [](const Tensors& t) { return at::sgn(t[0]); }, {{5, 4}}, {.low = -2, .high = 2});
  expect_same_as_dense("copysign", [](const Tensors& t) { return at::copysign(t[0], t[1]); }, {{5, 4}, {4}},
                       {.low = -2, .high = 2});
  expect_same_as_dense("nextafter", [](const Tensors& t) { return at::nextafter(t[0], t[1]); }, {{5, 4}, {4}});
  const auto second = [](const Tensors& t) {
    const at::Tensor size = at::abs(t[0]) * t[1];
    return torch::autograd::grad({size}, {t[0]}, {at::ones_like(size)}, true, true)[0];
  };
  expect_same_as_dense("abs of second order", second, {{5, 4}, {5, 4}}, {.low = -2, .high = 2});
}

TEST(ReductionsTest, ReducedShardsBecomePartialAndOthersStay) {
  const auto sum = [](const Tensors& t) { return Tensors{t[0].sum(0)}; };
  for (const Placement& placement :
       {Placement::shard(0), Placement::shard(1), Placement::partial(), Placement::replicate()})
    EXPECT_EQ(bytes_received(sum, {{5, 4}}, {3}, {{placement}}), 0) << to_string(placement);
}

}  // namespace
}  // namespace shardwise::reductions_test
