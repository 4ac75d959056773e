// Products of groups of rows: values and gradients against dense ones, what they send, and what they refuse.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::grouped_mm_test {
namespace {

at::Tensor ends(std::vector<int64_t> values) { return at::tensor(values, at::kInt); }

/// Sizes are multiples of 4, as torch's kernel wants float32.
const DenseOptions kFloats{.dtype = at::kFloat, .is_exact = false, .max_combinations = 60};

TEST(GroupedMmTest, RowsOfEachGroupAreMultipliedByItsMatrix) {
  for (const auto& offs : std::vector<std::vector<int64_t>>{{2, 2, 7, 7, 10}, {0, 0, 0, 0, 10}, {10, 10, 10, 10, 10}})
    expect_same_as_dense(
        "rows", [&](const Tensors& t) { return at::_grouped_mm(t[0], t[1], ends(offs)); }, {{10, 4}, {5, 4, 8}},
        kFloats);
  expect_same_as_dense(
      "no rows", [](const Tensors& t) { return at::_grouped_mm(t[0], t[1], ends({0, 0, 0})); }, {{0, 4}, {3, 4, 8}},
      kFloats);
  expect_same_as_dense(
      "transposed matrices", [](const Tensors& t) { return at::_grouped_mm(t[0], t[1].mT(), ends({3, 3, 9})); },
      {{9, 4}, {3, 8, 4}}, kFloats);
}

TEST(GroupedMmTest, OtherFormsAreDense) {
  expect_same_as_dense(
      "matrices", [](const Tensors& t) { return at::_grouped_mm(t[0], t[1], ends({3, 3, 12})); }, {{8, 12}, {12, 4}},
      kFloats);
  expect_same_as_dense(
      "columns", [](const Tensors& t) { return at::_grouped_mm(t[0], t[1], ends({3, 3, 12})); }, {{3, 8, 4}, {4, 12}},
      kFloats);
  expect_same_as_dense(
      "batches", [](const Tensors& t) { return at::_grouped_mm(t[0], t[1]); }, {{3, 5, 4}, {3, 4, 8}}, kFloats);
}

TEST(GroupedMmTest, MatricesStayWhereTheyAre) {
  const Placements by_group{Placement::shard(0)}, whole{Placement::replicate()};
  const auto both_ways = [](const Tensors& t) {
    const Tensors inputs{t[0].detach().to(at::kFloat).requires_grad_(), t[1].detach().to(at::kFloat).requires_grad_()};
    const at::Tensor rows = at::_grouped_mm(inputs[0], inputs[1], ends({2, 2, 7, 10}));
    return torch::autograd::grad({rows}, inputs, {rows.detach()});
  };
  const Placement of_groups = Placement::shard(0, {2, 8});  // as two groups each have them
  EXPECT_EQ(bytes_received(both_ways, {{10, 4}, {4, 4, 8}}, {2}, {{of_groups}, by_group}), 0);
  const auto forward = [](const Tensors& t) {
    return Tensors{at::_grouped_mm(t[0].to(at::kFloat), t[1].to(at::kFloat), ends({2, 2, 7, 10}))};
  };
  EXPECT_EQ(bytes_received(forward, {{10, 4}, {4, 4, 8}}, {2}, {whole, by_group}), 0);
  // Rank 0 has rows 0 to 4, and rank 1 the groups of rows 2 to 9: 3 rows of 4 floats go there.
  EXPECT_EQ(bytes_received(forward, {{10, 4}, {4, 4, 8}}, {2}, {{Placement::shard(0)}, by_group}), 3 * 4 * 4);
  EXPECT_EQ(bytes_received(forward, {{10, 4}, {4, 4, 8}}, {2}, {whole, {Placement::shard(2)}}), 0);
  EXPECT_EQ(bytes_received(forward, {{10, 4}, {4, 4, 8}}, {2}, {{Placement::shard(1)}, {Placement::shard(1)}}), 0);
  EXPECT_EQ(bytes_received(forward, {{10, 4}, {4, 4, 8}}, {2}, {{Placement::shard(0)}, whole}), 0);
}

std::string error_of(const at::Tensor& left, const at::Tensor& right, const std::optional<at::Tensor>& offs) {
  return error_of_ranks(2, [&](World&) {
    const auto mesh = make_mesh({2});
    at::_grouped_mm(lay_out(left, mesh, {Placement::replicate()}), lay_out(right, mesh, {Placement::shard(0)}), offs);
  });
}

TEST(GroupedMmTest, SaysWhatDoesNotFit) {
  const at::Tensor rows = at::ones({8, 4}), matrices = at::ones({3, 4, 8});
  expect_error("Offsets have to be int32", error_of(rows, matrices, at::tensor({1, 2, 3}, at::kLong)));
  expect_error("offs has 2 entries for 3 groups", error_of(rows, matrices, ends({1, 2})));
  expect_error("offs[1] is 3", error_of(rows, matrices, ends({4, 3, 8})));
  expect_error("offs[2] is 9", error_of(rows, matrices, ends({4, 5, 9})));
  expect_error("Have to provide offsets", error_of(rows, matrices, std::nullopt));
  expect_error("contraction dimension", error_of(at::ones({8, 8}), matrices, ends({1, 2, 3})));
  expect_error("of one dtype", error_of(rows.to(at::kBFloat16), matrices, ends({1, 2, 3})));
  expect_error("Float32, BFloat16 or Float16",
               error_of(rows.to(at::kDouble), matrices.to(at::kDouble), ends({1, 2, 3})));
}

}  // namespace
}  // namespace shardwise::grouped_mm_test
