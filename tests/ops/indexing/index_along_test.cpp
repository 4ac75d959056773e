// One dim indexed by a vector, and all elements by their number.
#include "runtime/comm/events.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::index_along_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0);

at::Tensor indices_in(const at::Tensor& numbers, int64_t size) {
  return (numbers.detach() * 16).to(at::kLong).remainder(size);
}

/// Indices of which none comes twice.
at::Tensor distinct(const at::Tensor& numbers) { return numbers.detach().argsort(/*stable=*/true, 0); }

const DenseOptions kFew = {.max_combinations = 20};

TEST(IndexAlongTest, SelectIsDense) {
  // self, indices, dim
  const std::vector<std::tuple<Dims, Dims, int64_t>> cases = {{{7, 3}, {5}, 0}, {{3, 7}, {9}, -1}, {{2, 5, 3}, {4}, 1},
                                                              {{7, 3}, {}, 0},  {{}, {}, 0},       {{4, 2}, {0}, 0}};
  for (const auto& [self, index, dim] : cases)
    expect_same_as_dense(
        "index_select",
        [d = dim](const Tensors& t) {
          return at::index_select(t[0], d, indices_in(t[1], t[0].dim() ? t[0].size(d) : 1));
        },
        {self, index}, kFew);
}

TEST(IndexAlongTest, WritesAreDense) {
  const std::vector<Dims> rows = {{7, 3}, {5}, {5, 3}}, columns = {{3, 7}, {5}, {3, 5}};
  expect_same_as_dense(
      "index_add", [](const Tensors& t) { return at::index_add(t[0], 0, indices_in(t[1], 7), t[2], 3); }, rows, kFew);
  expect_same_as_dense(
      "index_add", [](const Tensors& t) { return at::index_add(t[0], 1, indices_in(t[1], 7), t[2]); }, columns, kFew);
  expect_same_as_dense(
      "index_copy", [](const Tensors& t) { return at::index_copy(t[0], 0, distinct(t[1]), t[2]); }, rows, kFew);
  expect_same_as_dense(
      "index_fill", [](const Tensors& t) { return at::index_fill(t[0], 1, distinct(t[1]), 2.5); }, {{3, 7}, {5}}, kFew);
  expect_same_as_dense(
      "index_fill_", [](const Tensors& t) { return t[0].clone().index_fill_(0, distinct(t[1]), t[2]); },
      {{7, 3}, {3}, {}}, {.with_grad = false, .max_combinations = 20});  // torch's asks for unique indices
  expect_same_as_dense("index_fill from the end",
                       [](const Tensors& t) { return at::index_fill(t[0], 0, distinct(t[1]).sub(3), 1); },
                       {{7, 3}, {3}}, {.with_grad = false, .max_combinations = 20});  // torch's gradient refuses
  for (const char* reduce : {"prod", "mean", "amax", "amin"})
    expect_same_as_dense(reduce,
                         [=](const Tensors& t) {
                           return at::index_reduce(t[0], 0, indices_in(t[1], 7), t[2], reduce, /*include_self=*/false);
                         },
                         rows, {.is_exact = false, .max_combinations = 12});
}

TEST(IndexAlongTest, ElementsByNumberAreDense) {
  expect_same_as_dense(
      "take", [](const Tensors& t) { return at::take(t[0], indices_in(t[1], 42).sub(21)); }, {{7, 6}, {2, 5}}, kFew);
  const auto put = [](const Tensors& t) { return at::put(t[0], indices_in(t[1], 42), t[2], /*accumulate=*/true); };
  expect_same_as_dense("put", put, {{7, 6}, {2, 5}, {10}}, kFew);
  const auto written = [](const Tensors& t) { return t[0].clone().put_(distinct(t[1]), t[2]); };
  expect_same_as_dense("put_", written, {{7, 6}, {5}, {5}}, kFew);
}

TEST(IndexAlongTest, OwnRowsAreWrittenWithoutAMessage) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}, {2, 0, 1});
    const auto dense = at::arange(24, at::kDouble).view({8, 3}), rows = at::full({2, 3}, -1., at::kDouble);
    auto self = lay_out(dense.clone(), mesh, {Placement::shard(0, {2, 0, 6})});
    const auto ids = at::tensor({7, 1}, at::kLong), own = lay_out(ids, mesh, {kReplicate}),
               of_ids = lay_out(rows, mesh, {kReplicate});
    const SpecPtr before = spec_of(self);
    CommTrace trace;
    self.index_add_(0, own, of_ids, 2);
    self.index_copy_(0, own.sub(1), of_ids);
    self.index_fill_(0, own, 5);
    EXPECT_EQ(trace.total_count(), 0);
    EXPECT_EQ(spec_of(self), before);
    EXPECT_TRUE(full_tensor(self).equal(
        dense.index_add(0, ids, rows, 2).index_copy(0, ids.sub(1), rows).index_fill(0, ids, 5)));
  });
}

TEST(IndexAlongTest, WrongArgumentsSayTheRightOnes) {
  const auto error = [](const std::function<void(const at::Tensor&, const at::Tensor&)>& use) {
    return error_of_ranks(2, [&](World&) {
      const auto mesh = make_mesh({2});
      use(lay_out(at::rand({4, 3}), mesh, {kRows}), lay_out(at::tensor({1, 4}), mesh, {kReplicate}));
    });
  };
  expect_error("[aten::index_select] index 4 is out of bounds for dimension 0 with size 4. Use indices in [0, 4).",
               error([](const at::Tensor& x, const at::Tensor& i) { at::index_select(x, 0, i); }));
  expect_error("[aten::index_fill] index 4 is out of bounds for dimension 1 with size 3. Use indices in [-3, 3).",
               error([](const at::Tensor& x, const at::Tensor& i) { at::index_fill(x, 1, i, 0); }));
  expect_error("Index is supposed to be a vector, but got dim: 2",
               error([](const at::Tensor& x, const at::Tensor& i) { at::index_select(x, 0, i.view({1, 2})); }));
  expect_error("source of shape [4, 3] does not fit: the 2 indices for dimension 0 of self of shape [4, 3] need [2, 3]",
               error([](const at::Tensor& x, const at::Tensor& i) { at::index_add(x, 0, i.sub(1), x); }));
  expect_error("index 20 is out of bounds for dimension 0 with size 12",
               error([](const at::Tensor& x, const at::Tensor& i) { at::take(x, i.to(at::kLong).mul(5)); }));
}

}  // namespace
}  // namespace shardwise::index_along_test
