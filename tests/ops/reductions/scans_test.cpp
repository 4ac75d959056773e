// Running sums, products and extremes along sharded dims.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::scans_test {
namespace {

const Placement kRows = Placement::shard(0), kUneven = Placement::shard(0, {0, 5, 3});

TEST(ScanTest, SumsAreDense) {
  for (int64_t dim : {0, 1, -1})
    expect_same_as_dense("cumsum", [=](const Tensors& t) { return t[0].cumsum(dim); }, {{8, 3, 4}});
  expect_same_as_dense("cumsum of few", [](const Tensors& t) { return t[0].cumsum(0); }, {{2, 3}});
  expect_same_as_dense("cumsum of nothing", [](const Tensors& t) { return t[0].cumsum(0); }, {{0, 3}});
  expect_same_as_dense("cumsum of a scalar", [](const Tensors& t) { return t[0].cumsum(0); }, {{}});
  expect_same_as_dense("cumsum of integers", [](const Tensors& t) { return t[0].cumsum(0); }, {{7}},
                       {.dtype = at::kInt});
  expect_same_as_dense("cumsum in place", [](const Tensors& t) { return t[0].clone().cumsum_(0); }, {{7, 2}});
  expect_same_as_dense("cumsum as float", [](const Tensors& t) { return t[0].cumsum(0, at::kFloat); }, {{7, 2}});
}

TEST(ScanTest, ResultsHaveTheDtypeAskedFor) {
  for (const at::ScalarType from : {at::kBool, at::kInt, at::kDouble})
    for (const at::ScalarType to : {at::kChar, at::kInt, at::kLong, at::kFloat}) {
      const DenseOptions options{.low = 0, .high = 3, .dtype = from, .with_grad = false, .max_combinations = 12};
      expect_same_as_dense("cumsum", [=](const Tensors& t) { return t[0].cumsum(0, to); }, {{7, 2}}, options);
      expect_same_as_dense("cumprod", [=](const Tensors& t) { return t[0].cumprod(0, to); }, {{7, 2}}, options);
    }
  const DenseOptions integers{.dtype = at::kInt, .max_combinations = 12};
  expect_same_as_dense("cumsum_", [](const Tensors& t) { return t[0].clone().cumsum_(0); }, {{7, 2}}, integers);
  expect_same_as_dense("cumprod_", [](const Tensors& t) { return t[0].clone().cumprod_(0); }, {{7, 2}}, integers);
}

TEST(ScanTest, DtypesThatCannotBeAreErrorsOnAllRanks) {
  // One row on three ranks: torch's kernels refuse where there are elements.
  const auto error = [](const std::function<void(const at::Tensor&)>& use) {
    return error_of_ranks(3, [&](World&) { use(lay_out(at::ones({1, 2}, at::kInt), make_mesh({3}), {kRows})); });
  };
  expect_error("[aten::cumsum] is not implemented for bools",
               error([](const at::Tensor& t) { t.cumsum(0, at::kBool); }));
  expect_error("[aten::cumprod] is not implemented for bools",
               error([](const at::Tensor& t) { t.cumprod(0, at::kBool); }));
  expect_error("[aten::cumsum_] dtype=Long does not fit the tensor, which is Int",
               error([](at::Tensor t) { t.cumsum_(0, at::kLong); }));
}

TEST(ScanTest, SecondDerivativesOfSumsAreDense) {
  expect_same_as_dense("the gradient of cumsum",
                       [](const Tensors& t) {
                         const at::Tensor leaf = t[0].requires_grad() ? t[0] : t[0].detach().requires_grad_();
                         const at::Tensor squares = leaf.cumsum(0).square();
                         return torch::autograd::grad({squares}, {leaf}, {at::ones_like(squares)}, std::nullopt,
                                                      /*create_graph=*/true)[0];
                       },
                       {{7, 2}}, {.low = -16, .high = 16});
}

TEST(ScanTest, ProductsAndLogarithmsAreDense) {
  const DenseOptions small{.low = 8, .high = 24, .is_exact = false, .with_grad = false};
  for (int64_t dim : {0, 1}) {
    expect_same_as_dense("cumprod", [=](const Tensors& t) { return t[0].cumprod(dim); }, {{8, 3}}, small);
    expect_same_as_dense("logcumsumexp", [=](const Tensors& t) { return t[0].logcumsumexp(dim); }, {{8, 3}},
                         {.is_exact = false});
  }
  // Zeros once, twice and never along a line; each gradient differentiated again.
  const auto products = [](const Tensors& t) {
    const at::Tensor leaf = t[0].requires_grad() ? t[0] : t[0].detach().requires_grad_();
    const at::Tensor squares = leaf.mul(16).cumprod(0).square();
    return Tensors{leaf.mul(16).cumprod(0), torch::autograd::grad({squares}, {leaf}, {at::ones_like(squares)},
                                                                  std::nullopt, /*create_graph=*/true)[0]};
  };
  expect_same_as_dense("gradients of cumprod", products, {{5, 6}}, {.low = -1, .high = 3, .is_exact = false});
  expect_same_as_dense("cumprod over zeros", [](const Tensors& t) { return t[0].cumprod(0); }, {{9, 2}},
                       {.low = -2, .high = 3, .dtype = at::kLong});
}

TEST(ScanTest, ExtremesAreDense) {
  // Few values: ties between shards and within them.
  const DenseOptions ties{.low = -3, .high = 3};
  for (int64_t dim : {0, 1})
    expect_same_as_dense(
        "cummax, cummin",
        [=](const Tensors& t) {
          const auto [largest, at_largest] = t[0].cummax(dim);
          const auto [smallest, at_smallest] = t[0].cummin(dim);
          return Tensors{largest, at_largest, smallest, at_smallest};
        },
        {{8, 3}}, ties);
  expect_same_as_dense("NaN stays",
                       [](const Tensors& t) {
                         const auto [largest, places] = at::log(t[0]).cummax(0);
                         return Tensors{largest, places};
                       },
                       {{9}}, {.low = -2, .high = 9, .with_grad = false});
}

TEST(ScanTest, OneSlicePerRankIsAllThatMoves) {
  const auto scan = [](const Tensors& t) { return Tensors{t[0].cumsum(0)}; };
  for (const Placement& rows : {kRows, kUneven}) EXPECT_EQ(bytes_received(scan, {{8, 6}}, {3}, {{rows}}), 2 * 6 * 8);
  EXPECT_EQ(bytes_received(scan, {{8, 6}}, {3}, {{Placement::shard(1)}}), 0);
  EXPECT_EQ(bytes_received(scan, {{8, 6}}, {3}, {{Placement::partial()}}), 0);
}

TEST(ScanTest, GradientsMoveOneSlicePerRankToo) {
  const auto train = [](const Tensors& t) {
    const at::Tensor leaf = t[0].requires_grad_();
    const at::Tensor sums = leaf.cumsum(0);
    return torch::autograd::grad({sums}, {leaf}, {sums.detach()});
  };
  EXPECT_EQ(bytes_received(train, {{8, 6}}, {3}, {{kUneven}}), 2 * 2 * 6 * 8);
}

TEST(ScanTest, ADimOutOfRangeIsAnErrorOnAllRanks) {
  expect_error("Dimension out of range",
               error_of_ranks(2, [](World&) { lay_out(at::ones({4}), make_mesh({2}), {kRows}).cumsum(2); }));
}

}  // namespace
}  // namespace shardwise::scans_test
