// Distances and norms of slices: values and gradients against dense ones.
#include "tests/support/dense.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::distances_test {
namespace {

const DenseOptions kClose{.meshes = {{3}, {2, 2}}, .is_exact = false, .max_combinations = 24};

TEST(DistancesTest, OfPairsAreDense) {
  EXPECT_EQ(to_string(rule("aten::_cdist_backward")), "…pr,…p_,…r_,…pr->…p_ {r: sum} linear in the first");
  for (const double p : {0.5, 1., 2., 3.}) {
    const auto distances = [p](const Tensors& t) { return at::cdist(t[0], t[1], p); };
    expect_same_as_dense("cdist", distances, {{5, 3}, {4, 3}}, kClose);
  }
  expect_same_as_dense(
      "cdist of batches", [](const Tensors& t) { return at::cdist(t[0], t[1], 1); }, {{2, 3, 4}, {2, 2, 4}}, kClose);
  expect_same_as_dense("pdist", [](const Tensors& t) { return at::pdist(t[0]); }, {{5, 3}}, kClose);
}

TEST(DistancesTest, OfRowsAreDense) {
  expect_same_as_dense(
      "cosine_similarity", [](const Tensors& t) { return at::cosine_similarity(t[0], t[1]); }, {{5, 3}, {5, 3}},
      kClose);
  expect_same_as_dense(
      "pairwise_distance", [](const Tensors& t) { return at::pairwise_distance(t[0], t[1]); }, {{5, 3}, {5, 3}},
      kClose);
}

TEST(DistancesTest, RenormIsDense) {
  for (const int64_t dim : {0, -1}) {
    expect_same_as_dense("renorm", [dim](const Tensors& t) { return at::renorm(t[0], 2, dim, 9.); }, {{5, 3}}, kClose);
    expect_same_as_dense(
        "renorm in place", [dim](const Tensors& t) { return t[0].clone().renorm_(1, dim, 9.); }, {{4, 3, 2}}, kClose);
  }
}

TEST(DistancesTest, ShardedRowsSendNothing) {
  const auto distances = [](const Tensors& t) { return Tensors{at::cdist(t[0], t[1], 1)}; };
  EXPECT_EQ(
      bytes_received(distances, {{5, 3}, {4, 3}}, {2, 2},
                     {{Placement::shard(0), Placement::replicate()}, {Placement::replicate(), Placement::shard(0)}}),
      0);
  const auto shortened = [](const Tensors& t) { return Tensors{at::renorm(t[0], 2, 0, 1.)}; };
  EXPECT_EQ(bytes_received(shortened, {{5, 3}}, {3}, {{Placement::shard(0)}}), 0);
}

}  // namespace
}  // namespace shardwise::distances_test
