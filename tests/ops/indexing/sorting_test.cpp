// sort and topk along sharded dims.
#include "runtime/api/dtensor.h"
#include "tests/support/called_operators.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::sorting_test {
namespace {

const Placement kRows = Placement::shard(0);

/// The values at `indices`: which of equal values is chosen is not specified.
at::Tensor taken(const at::Tensor& from, int64_t dim, const at::Tensor& indices) {
  const at::NoGradGuard no_grad;
  return from.gather(dim, indices);
}

TEST(SortingTest, SortedIsDense) {
  EXPECT_EQ(to_string(rule("aten::sort")), "pointwise whole(dim)");
  for (int64_t dim : {0, 1})
    for (bool descending : {false, true})
      expect_same_as_dense("sort",
                           [=](const Tensors& t) {
                             const auto [values, indices] = t[0].sort(/*stable=*/true, dim, descending);
                             return Tensors{values, indices};
                           },
                           {{7, 5}}, {.low = -9, .high = 9, .with_grad = false});
  expect_same_as_dense(
      "argsort", [](const Tensors& t) { return t[0].argsort(/*dim=*/int64_t{0}, /*descending=*/false); }, {{7, 5}});
  expect_same_as_dense("msort", [](const Tensors& t) { return t[0].msort(); }, {{7, 5}});
  expect_same_as_dense("sort of a scalar", [](const Tensors& t) { return std::get<0>(t[0].sort()); }, {{}});
}

TEST(SortingTest, TheShardOfASortedDimMovesToAnotherDim) {
  const auto sort = [](const Tensors& t) { return Tensors{std::get<0>(t[0].sort(0))}; };
  EXPECT_EQ(bytes_received(sort, {{8, 8}}, {4}, {{kRows}}), 3 * 2 * 2 * 8);
  EXPECT_EQ(bytes_received(sort, {{8, 8}}, {4}, {{Placement::shard(1)}}), 0);
}

TEST(SortingTest, LargestAndSmallestAreDense) {
  for (int64_t dim : {0, -1})
    for (int64_t k : {0, 3, 5})
      for (bool is_largest : {false, true})
        expect_same_as_dense("topk",
                             [=](const Tensors& t) {
                               const auto [values, indices] = t[0].topk(k, dim, is_largest);
                               return Tensors{values, taken(t[0].detach(), dim, indices)};
                             },
                             {{7, 5}}, {.with_grad = k > 0, .max_combinations = 20});
  expect_same_as_dense("topk of a scalar", [](const Tensors& t) { return std::get<0>(t[0].topk(1)); }, {{}});
}

TEST(SortingTest, OnlyCandidatesMove) {
  const auto top = [](const Tensors& t) { return Tensors{std::get<0>(t[0].topk(2, 0))}; };
  // From each of three other ranks two values and two indices, of 32 bits, for each of five columns.
  EXPECT_EQ(bytes_received(top, {{40, 5}}, {4}, {{kRows}}), 3 * 2 * 5 * (8 + 4));
  EXPECT_EQ(bytes_received(top, {{40, 5}}, {4}, {{Placement::shard(1)}}), 0);
}

TEST(SortingTest, TopkOfAWholeDimIsOneCallOfTheKernel) {
  run_ranks(2, [](World&) {
    const at::Tensor x = lay_out(at::rand({4, 6}), make_mesh({2}), {kRows});
    x.topk(3, 1);                                                 // decides
    EXPECT_EQ(calls_of("aten::topk", [&] { x.topk(3, 1); }), 2);  // of x and of its piece
  });
}

// With two mesh dims on one tensor dim the gradient needs no other layout either.
TEST(SortingTest, GradientsOfSelectedValuesAreLaidOutAsTheValues) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2});
    for (const Placements& placements : {Placements{kRows, kRows}, Placements{kRows, Placement::replicate()},
                                         Placements{kRows, Placement::shard(2)}}) {
      const at::Tensor x = lay_out(at::rand({5, 6, 3}), mesh, placements).requires_grad_();
      const at::Tensor values = std::get<0>(x.topk(2, 1));
      const at::Tensor grad = torch::autograd::grad({values}, {x}, {at::ones_like(values)})[0];
      EXPECT_EQ(spec_of(grad)->placements(), spec_of(x)->placements());
      EXPECT_EQ(full_tensor(grad).sum().item<double>(), 5 * 2 * 3);
    }
  });
}

TEST(SortingTest, KAboveTheExtentIsTheDenseError) {
  expect_error("selected index k out of range",
               error_of_ranks(2, [](World&) { lay_out(at::ones({4, 2}), make_mesh({2}), {kRows}).topk(5, 0); }));
}

}  // namespace
}  // namespace shardwise::sorting_test
