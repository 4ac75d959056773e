// Searching, counting and classes: values stay sharded.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::search_test {
namespace {

const DenseOptions kValues = {.with_grad = false, .max_combinations = 20};

TEST(SearchTest, RulesSayWhatTheyAre) {
  EXPECT_EQ(to_string(rule("aten::searchsorted.Tensor")), "searchsorted");
  EXPECT_EQ(to_string(rule("aten::isin.Tensor_Tensor")), "isin");
  EXPECT_EQ(to_string(rule("aten::unique_dim")), "gathered");
}

TEST(SearchTest, AnyLayoutsAreDense) {
  const auto bounds = [](const at::Tensor& t) { return t.mul(0).add(1).cumsum(-1).sub(3); };
  expect_same_as_dense(
      "searchsorted", [&](const Tensors& t) { return at::searchsorted(bounds(t[0]), t[1], false, true); },
      {{6}, {4, 3}}, kValues);
  expect_same_as_dense(
      "searchsorted by row", [&](const Tensors& t) { return at::searchsorted(bounds(t[0]), t[1]); }, {{4, 6}, {4, 3}},
      kValues);
  expect_same_as_dense(
      "bucketize", [&](const Tensors& t) { return at::bucketize(t[0], bounds(t[1])); }, {{5, 3}, {6}}, kValues);
  expect_same_as_dense("isin", [](const Tensors& t) { return at::isin(t[0], t[1]); }, {{5, 3}, {40}}, kValues);
  expect_same_as_dense(
      "isin of a scalar", [](const Tensors& t) { return at::isin(t[0].floor(), 1); }, {{5, 3}}, kValues);
  expect_same_as_dense("histc", [](const Tensors& t) { return at::histc(t[0], 5, -4, 4); }, {{5, 7}}, kValues);
  expect_same_as_dense("histc of all", [](const Tensors& t) { return at::histc(t[0], 5); }, {{5, 7}}, kValues);
  expect_same_as_dense(
      "count_nonzero", [](const Tensors& t) { return at::count_nonzero(t[0].gt(0), std::optional<int64_t>(0)); },
      {{5, 7}}, kValues);
}

TEST(SearchTest, ValuesStaySharded) {
  const auto searched = [](const Tensors& t) { return Tensors{at::searchsorted(t[0], t[1])}; };
  const auto replica = std::vector<Placement>{Placement::replicate()};
  EXPECT_EQ(bytes_received(searched, {{6}, {9, 3}}, {3}, {replica, {Placement::shard(0)}}), 0);
  EXPECT_EQ(bytes_received(searched, {{9, 6}, {9, 3}}, {3}, {{Placement::shard(0)}, {Placement::shard(0)}}), 0);
  const auto counted = [](const Tensors& t) { return Tensors{at::histc(t[0], 5, -4, 4)}; };
  EXPECT_EQ(bytes_received(counted, {{9, 3}}, {3}, {{Placement::shard(0)}}), 0);
}

TEST(SearchTest, ClassesAndUniqueValuesAreDense) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}, {2, 0, 1});
    const auto dense = at::tensor({3, 1, 1, 0, 5}, at::kLong);
    for (const Placement& placement : {Placement::shard(0), Placement::replicate()}) {
      const auto ids = lay_out(dense, mesh, {placement});
      EXPECT_TRUE(full_tensor(at::one_hot(ids)).equal(at::one_hot(dense)));
      EXPECT_EQ(spec_of(at::one_hot(ids, 7))->placements()[0], placement);
      EXPECT_TRUE(full_tensor(at::bincount(ids)).equal(at::bincount(dense)));
      const auto [values, places, counts] = at::_unique2(ids, true, true, true);
      const auto [dense_values, dense_places, dense_counts] = at::_unique2(dense, true, true, true);
      EXPECT_TRUE(full_tensor(values).equal(dense_values));
      EXPECT_TRUE(full_tensor(places).equal(dense_places));
      EXPECT_TRUE(full_tensor(counts).equal(dense_counts));
    }
  });
}

}  // namespace
}  // namespace shardwise::search_test
