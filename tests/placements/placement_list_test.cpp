#include "placements/placement_list.h"

#include <gtest/gtest.h>

namespace shardwise::placement_list_test {
namespace {

using P = Placement;
using MeshDims = std::vector<int64_t>;

const std::vector<P> kMixed = {P::shard(0), P::partial(), P(), P::shard(1), P::shard(0, {1, 2})};
const std::vector<P> kBoxes = {P::enumerable({{{0, 0}, {3, 2}, 0}})};

TEST(PlacementListTest, MeshDimsAreListedByWhatTheyDo) {
  EXPECT_EQ(mesh_dims_splitting(kMixed, 0), (MeshDims{0, 4}));
  EXPECT_EQ(mesh_dims_splitting(kMixed, 2), MeshDims{});
  EXPECT_EQ(mesh_dims_splitting(kBoxes, 0), MeshDims{});
  EXPECT_EQ(mesh_dims_with_terms(kMixed), MeshDims{1});
  EXPECT_EQ(mesh_dims_that_differ(kMixed), (MeshDims{0, 1, 3, 4}));
  EXPECT_EQ(mesh_dims_that_differ(kBoxes), MeshDims{0});
  EXPECT_EQ(mesh_dims_that_differ({}), MeshDims{});
}

TEST(PlacementListTest, PlacementsAreMadeWhole) {
  EXPECT_EQ(to_string(without_partial(kMixed)),
            "[Shard(0), Replicate(), Replicate(), Shard(1), Shard(0, sizes=[1, 2])]");
  EXPECT_EQ(to_string(whole_along(kMixed, {0, 2})), "[Replicate(), Partial(sum), Replicate(), Shard(1), Replicate()]");
  EXPECT_EQ(whole_along(kMixed, {}), kMixed);
  EXPECT_EQ(whole_along(kBoxes, {1}), std::vector<P>{P()});
  EXPECT_EQ(without_boxes(kBoxes), std::vector<P>{P()});
  EXPECT_EQ(without_boxes(kMixed), kMixed);
}

TEST(PlacementListTest, TermsGetAnotherReduction) {
  EXPECT_EQ(to_string(with_reduce({P::partial(), P(), P::shard(0)}, Reduce::kMax)),
            "[Partial(max), Replicate(), Shard(0)]");
}

TEST(PlacementListTest, DimsAreRenumbered) {
  EXPECT_EQ(to_string(renumbered(kMixed, [](int64_t dim) { return dim + 1; })),
            "[Shard(1), Partial(sum), Replicate(), Shard(2), Shard(1, sizes=[1, 2])]");
  EXPECT_EQ(to_string(with_dims_from_zero({P::shard(-1), P::shard(1), P()}, 2)), "[Shard(1), Shard(1), Replicate()]");
}

TEST(PlacementListTest, QuestionsAreAskedOfAllPlacements) {
  EXPECT_TRUE(splits(kMixed, 0) && splits(kMixed, 1) && !splits(kMixed, 2) && !splits(kBoxes, 0));
  EXPECT_TRUE(are_linear(kMixed) && are_linear(kBoxes) && are_linear({}));
  EXPECT_FALSE(are_linear({P::shard(0), P::partial(Reduce::kMax)}));
}

TEST(PlacementListTest, MeshDimsOfOneRankDivideNothing) {
  const auto alike = [](const std::vector<P>& a, const std::vector<P>& b) { return hold_alike(a, b, {1, 3, 1}); };
  EXPECT_TRUE(alike({P::shard(0), P::shard(1), P::partial()}, {P(), P::shard(1), P::shard(1)}));
  EXPECT_TRUE(alike({P::shard(0, {4}), P(), P()}, {P::partial(Reduce::kMax), P(), P()}));
  EXPECT_FALSE(alike({P(), P::shard(0), P()}, {P(), P(), P()}));
  EXPECT_FALSE(alike({P(), P(), P()}, {P(), P::partial(), P::shard(0)}));
  EXPECT_TRUE(hold_alike(kBoxes, kBoxes, {1}));
  EXPECT_FALSE(hold_alike(kBoxes, {P()}, {1}));
}

TEST(PlacementListTest, TheFirstReplicaHasTheSamePartsAndTerms) {
  EXPECT_EQ(first_replica(kMixed, {1, 2, 3, 4, 5}), (Dims{1, 2, 0, 4, 5}));
  EXPECT_EQ(first_replica({}, {}), Dims{});
}

}  // namespace
}  // namespace shardwise::placement_list_test
