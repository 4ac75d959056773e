// Variances, argmax and argmin against dense ones; a few numbers per shard are all that moves.
#include "runtime/api/dtensor.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace shardwise::var_argmax_test {
namespace {

const DenseOptions kClose{.is_exact = false, .max_combinations = 20};

Tensors pair(std::tuple<at::Tensor, at::Tensor> both) { return {std::get<0>(both), std::get<1>(both)}; }

TEST(VarArgmaxTest, RuleSaysOneEntryPerShard) {
  EXPECT_EQ(to_string(rule("shardwise::piece_moments")), "one entry per shard");
}

TEST(VarArgmaxTest, VariancesAreDense) {
  for (const double correction : {0.0, 1.0, 2.5}) {
    const auto var = [=](const Tensors& t) { return at::var(t[0], at::IntArrayRef{0}, c10::Scalar(correction)); };
    expect_same_as_dense("var", var, {{5, 4}}, kClose);
  }
  expect_same_as_dense("var of all", [](const Tensors& t) { return t[0].var(); }, {{5, 4}}, kClose);
  expect_same_as_dense(
      "std of two dims", [](const Tensors& t) { return at::std(t[0], at::IntArrayRef{0, 2}, true, true); }, {{3, 2, 4}},
      kClose);
  const auto both = [](const Tensors& t) { return pair(at::var_mean(t[0], at::IntArrayRef{1}, true)); };
  expect_same_as_dense("var_mean", both, {{3, 5}}, kClose);
  expect_same_as_dense("std_mean", [](const Tensors& t) { return pair(at::std_mean(t[0])); }, {{2, 3}}, kClose);
  expect_same_as_dense(
      "of more ranks than rows", [](const Tensors& t) { return at::var(t[0], at::IntArrayRef{0}); }, {{2, 3}}, kClose);
}

// In float32 squares of numbers near 10,000 have no digits left for a variance of about 0.3.
TEST(VarArgmaxTest, VariancesOfLargeNumbersKeepTheirDigits) {
  const std::string error = error_of_ranks(4, [](World&) {
    const auto mesh = make_mesh({4});
    const at::Tensor dense = at::linspace(0, 4, 1000, at::kDouble).sin().add(10000).to(at::kFloat);
    const at::Tensor expected = dense.to(at::kDouble).var();
    for (const Placement& placement : {Placement::shard(0), Placement::shard(0, {1, 0, 900, 99})}) {
      const at::Tensor actual = full_tensor(lay_out(dense, mesh, {placement}).var()).to(at::kDouble);
      EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-3 * expected.item<double>());
    }
  });
  EXPECT_EQ(error, "");
}

TEST(VarArgmaxTest, IndicesAreDense) {
  const DenseOptions options{.low = -3, .high = 4, .max_combinations = 30};  // few values: many ties
  for (int64_t dim : {0, 1}) {
    expect_same_as_dense("argmax", [=](const Tensors& t) { return at::argmax(t[0], dim); }, {{5, 4}}, options);
    expect_same_as_dense("argmin", [=](const Tensors& t) { return at::argmin(t[0], dim, true); }, {{5, 4}}, options);
    expect_same_as_dense("max", [=](const Tensors& t) { return pair(at::max(t[0], dim)); }, {{5, 4}}, options);
    expect_same_as_dense("min", [=](const Tensors& t) { return pair(at::min(t[0], dim, true)); }, {{5, 4}}, options);
    expect_same_as_dense("aminmax", [=](const Tensors& t) { return pair(at::aminmax(t[0], dim)); }, {{5, 4}}, options);
  }
  expect_same_as_dense(
      "of all", [](const Tensors& t) { return Tensors{at::argmax(t[0]), at::argmin(t[0])}; }, {{3, 2, 4}}, options);
  expect_same_as_dense("of integers", [](const Tensors& t) { return pair(at::max(t[0], 0)); }, {{5, 4}},
                       {.low = -3, .high = 4, .dtype = at::kLong});
}

TEST(VarArgmaxTest, IndicesAmongNansAndInfinitiesAreDense) {
  const auto marked = [](const at::Tensor& x, double mark) { return x.detach().masked_fill(x.detach().lt(0), mark); };
  for (const double mark :
       {std::nan(""), -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()}) {
    const auto winners = [&](const Tensors& t) {
      const at::Tensor x = marked(t[0], mark);
      return Tensors{at::argmax(x, 0), at::argmin(x, 0), at::argmax(x), std::get<1>(at::max(x, 0)), at::amax(x, 0)};
    };
    expect_same_as_dense("winners", winners, {{4, 3}}, {.with_grad = false});
  }
  const auto lowest = [](const Tensors& t) {
    return at::argmax(at::full_like(t[0].detach(), -std::numeric_limits<double>::infinity()), 0);
  };
  expect_same_as_dense("nothing but minus infinity", lowest, {{2, 3}}, {.with_grad = false});
}

TEST(VarArgmaxTest, EmptyShardsTakePartInEveryMessage) {
  const auto all = [](const Tensors& t) {
    return Tensors{at::amax(t[0], 0),
                   at::amin(t[0]),
                   at::argmax(t[0], 0),
                   at::argmin(t[0]),
                   at::max(t[0]),
                   t[0].prod(0),
                   at::any(t[0] > 0),
                   at::var(t[0], at::IntArrayRef{0}),
                   at::logsumexp(t[0], at::IntArrayRef{0}),
                   at::count_nonzero(t[0], at::IntArrayRef{0}),
                   t[0].nansum(at::IntArrayRef{0})};
  };
  for (const Dims& sizes : {Dims{1}, Dims{2}, Dims{1, 3}, Dims{2, 2}})
    expect_same_as_dense("with fewer rows than ranks", all, {sizes},
                         {.low = 1, .high = 9, .is_exact = false, .with_grad = false});
}

TEST(VarArgmaxTest, ProductsAreDense) {
  const DenseOptions options{.low = 8, .high = 33, .is_exact = false, .with_grad = false};
  expect_same_as_dense("prod", [](const Tensors& t) { return t[0].prod(); }, {{3, 4}}, options);
  const auto complex = [](const Tensors& t) {
    const at::Tensor numbers = at::complex(t[0], t[1]);
    return Tensors{at::real(numbers.prod(0)).clone(), at::abs(numbers.prod()), at::abs(numbers.prod(1, true))};
  };
  expect_same_as_dense("complex prod", complex, {{5, 2}, {5, 2}}, options);
}

TEST(VarArgmaxTest, OneEntryPerShardIsAllThatMoves) {
  const auto rows = std::vector<std::vector<Placement>>{{Placement::shard(0)}};
  const std::vector<std::pair<const char*, std::function<Tensors(const Tensors&)>>> reductions{
      {"var", [](const Tensors& t) { return Tensors{t[0].var()}; }},
      {"argmax", [](const Tensors& t) { return Tensors{at::argmax(t[0])}; }},
      {"max", [](const Tensors& t) { return pair(at::max(t[0], 0)); }},
      {"aminmax", [](const Tensors& t) { return pair(at::aminmax(t[0])); }},
      {"logsumexp", [](const Tensors& t) { return Tensors{at::logsumexp(t[0], at::IntArrayRef{0})}; }},
  };
  for (const auto& [name, reduce] : reductions) EXPECT_LE(bytes_received(reduce, {{999}}, {3}, rows), 64) << name;
}

}  // namespace
}  // namespace shardwise::var_argmax_test
