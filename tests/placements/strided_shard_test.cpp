#include "placements/placement_list.h"
#include "tests/placements/layouts.h"

#include <gtest/gtest.h>

namespace shardwise::placement_test {
namespace {

Placement strided(int64_t dim, int64_t factor) { return Placement::strided_shard(dim, factor); }

TEST(StridedShardTest, EachPartIsSplitAsTorchChunkSplits) {
  EXPECT_EQ(holdings(Layout({8}, grid({2}), {strided(0, 2)})), "0[0:2] 0[4:6] 1[2:4] 1[6:8]");
  EXPECT_EQ(holdings(Layout({7}, grid({2}), {strided(0, 2)})), "0[0:2] 0[4:6] 1[2:4] 1[6:7]");
  EXPECT_EQ(holdings(Layout({3}, grid({2}), {strided(0, 2)})), "0[0:1] 0[2:3] 1[1:2]");
  EXPECT_EQ(holdings(Layout({2}, grid({2}), {strided(0, 4)})), "0[0:2] 1[2:2]");  // two parts of one index
  EXPECT_EQ(holdings(Layout({0}, grid({2}), {strided(0, 2)})), "0[0:0] 1[0:0]");
  EXPECT_EQ(holdings(Layout({6}, grid({1}), {strided(0, 3)})), "0[0:6]");  // pieces that adjoin are one
}

TEST(StridedShardTest, ItSplitsWhatEarlierShardsLeave) {
  const Layout nested({8, 2}, grid({2, 2}), {Placement::shard(0), strided(0, 2)});
  EXPECT_EQ(holdings(nested),
            "0[0:1, 0:2] 0[2:3, 0:2] 1[1:2, 0:2] 1[3:4, 0:2] 2[4:5, 0:2] 2[6:7, 0:2] 3[5:6, 0:2] 3[7:8, 0:2]");
  EXPECT_EQ(nested.local_sizes(3), (Dims{2, 2}));
  const Layout beside({4, 4}, grid({2, 2}), {strided(-1, 2), Placement::shard(0)});
  EXPECT_EQ(to_string(beside.placements()), "[_StridedShard(1, split_factor=2), Shard(0)]");
  EXPECT_EQ(beside.joined_dim(), std::optional<int64_t>(1));
  EXPECT_EQ(beside.local_sizes(1), (Dims{2, 2}));
}

TEST(StridedShardTest, OwnersAreFoundPieceByPiece) {
  const Layout layout({8}, grid({2}), {strided(0, 2)});
  EXPECT_EQ(words(layout.owners({{1}, {4}})), "0[1:2] 0[4:5] 1[2:4]");
}

TEST(StridedShardTest, AFactorOfOneIsAShard) {
  EXPECT_EQ(strided(0, 1), Placement::shard(0));
  EXPECT_NE(strided(0, 2), Placement::shard(0));
  EXPECT_NE(strided(0, 2), strided(0, 3));
  EXPECT_NE(strided(0, 2), Placement::block_shard(0, 2));
  EXPECT_NE(strided(0, 2).hash(), Placement::block_shard(0, 2).hash());
}

TEST(StridedShardTest, ListsOfPlacements) {
  const std::vector<Placement> list{strided(1, 2), Placement::partial()};
  EXPECT_EQ(to_string(without_boxes(list)), "[Shard(1), Partial(sum)]");
  EXPECT_EQ(to_string(whole_along(list, {0})), "[Replicate(), Partial(sum)]");
  EXPECT_EQ(to_string(renumbered(list, [](int64_t dim) { return dim + 1; })),
            "[_StridedShard(2, split_factor=2), Partial(sum)]");
}

TEST(StridedShardTest, BadPlacementsAreErrors) {
  const auto error = [](const Dims& shape, std::vector<Placement> placements) {
    return message_of<c10::ValueError>([&] { Layout({8, 4}, grid(shape), placements); });
  };
  expect_words(message_of<c10::ValueError>([] { strided(0, 0); }), {"[_StridedShard]", "split_factor=0", "1 or more"});
  expect_words(error({2, 2}, {strided(0, 2), Placement::shard(0)}),
               {"splits dim 0 again after a strided Shard", "mesh dim 1"});
  expect_words(error({2, 2}, {strided(0, 2), strided(1, 2)}), {"several boxes per rank on mesh dims 0 and 1"});
  expect_words(message_of<c10::IndexError>([] { Layout({8}, grid({2}), {strided(1, 2)}); }),
               {"tensor dim 1", "does not exist"});
}

}  // namespace
}  // namespace shardwise::placement_test
