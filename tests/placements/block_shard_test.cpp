#include "placements/placement_list.h"
#include "tests/placements/layouts.h"

#include <gtest/gtest.h>

namespace shardwise::block_shard_test {
namespace {

using P = Placement;

TEST(BlockShardTest, BlocksAreDealtWholeAndTheLastOneIsShort) {
  const struct {
    int64_t length, block;
    Dims mesh;
    std::string holdings;
  } cases[] = {
      {10, 4, {2}, "0[0:8] 1[8:10]"},
      {10, 4, {4}, "0[0:4] 1[4:8] 2[8:10] 3[10:10]"},
      {10, 1, {4}, "0[0:3] 1[3:6] 2[6:9] 3[9:10]"},  // torch.chunk's
      {10, 10, {2}, "0[0:10] 1[10:10]"},
      {10, std::numeric_limits<int64_t>::max(), {2}, "0[0:10] 1[10:10]"},
      {0, 4, {2}, "0[0:0] 1[0:0]"},
      {12, 4, {3}, "0[0:4] 1[4:8] 2[8:12]"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(holdings(Layout({c.length}, grid(c.mesh), {P::block_shard(0, c.block)})), c.holdings);
  EXPECT_EQ(part_sizes(P::block_shard(0, 4), 10, 4), (Dims{4, 4, 2, 0}));
}

TEST(BlockShardTest, NestedSplitsKeepTheBlocksWhole) {
  const Layout both({22}, grid({2, 2}), {P::block_shard(0, 4), P::block_shard(0, 4)});
  EXPECT_EQ(holdings(both), "0[0:8] 1[8:12] 2[12:20] 3[20:22]");
  EXPECT_EQ(both.placements()[1].sizes(), c10::IntArrayRef({8, 4, 8, 2}));
  const Layout equal({16}, grid({2, 2}), {P::block_shard(0, 4), P::block_shard(0, 4)});
  EXPECT_EQ(equal.placements()[1].sizes(), c10::IntArrayRef({4, 4}));
  // A split that cuts a block leaves two parts of it: [0, 5) and [5, 10).
  const Layout within({10}, grid({2, 2}), {P::shard(0), P::block_shard(0, 4)});
  EXPECT_EQ(holdings(within), "0[0:4] 1[4:5] 2[5:8] 3[8:10]");
}

TEST(BlockShardTest, ItIsAShardThatRemembersItsBlock) {
  const P blocks = P::block_shard(-1, 4);
  EXPECT_EQ(to_string(blocks), "BlockShard(-1, block=4)");
  EXPECT_FALSE(blocks == P::shard(-1) || blocks == P::block_shard(-1, 5) || blocks == P::block_shard(0, 4));
  EXPECT_NE(blocks.hash(), P::shard(-1).hash());
  const Layout layout({10}, grid({2}), {blocks});
  EXPECT_EQ(layout.placements()[0], P::block_shard(0, 4));
  EXPECT_EQ(layout.placements()[0].hash(), P::block_shard(0, 4).hash());
  EXPECT_EQ(layout.placements()[0].sizes(), c10::IntArrayRef({8, 2}));
  EXPECT_EQ(to_string(layout), "[10] as [BlockShard(0, block=4)] on 2 ranks");
  EXPECT_FALSE(layout == Layout({10}, grid({2}), {P::shard(0, {8, 2})}));
  // The sizes are those of each layout.
  EXPECT_EQ(Layout({8, 6}, grid({2}), {layout.placements()[0].with_dim(1)}).placements()[0].sizes(),
            c10::IntArrayRef({4, 2}));
  EXPECT_EQ(mesh_dims_splitting(layout.placements(), 0), std::vector<int64_t>{0});
  EXPECT_TRUE(blocks.is_alike(P::shard(-1)) && !blocks.is_chunk());
}

TEST(BlockShardTest, ADimOfAnotherSizeHasSizes) {
  const Layout layout({10}, grid({2}), {P::block_shard(0, 4)});
  EXPECT_EQ(to_string(layout.resized(0, [](int64_t i) { return i; })), "[BlockShard(0, block=4)]");
  EXPECT_EQ(to_string(layout.resized(0, [](int64_t i) { return std::min<int64_t>(i, 7); })),
            "[Shard(0, sizes=[7, 0])]");
}

TEST(BlockShardTest, ABlockHasElements) {
  expect_words(message_of<c10::ValueError>([] { P::block_shard(0, 0); }), {"BlockShard(0, block=0)", "Use 1 or more"});
}

}  // namespace
}  // namespace shardwise::block_shard_test
