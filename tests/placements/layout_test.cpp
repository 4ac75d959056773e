#include "placements/layout.h"

#include "placements/tiling.h"
#include "tests/placements/layouts.h"

#include <gtest/gtest.h>

#include <random>

namespace shardwise::layout_test {
namespace {

using P = Placement;

TEST(LayoutTest, ChunkSizesAreThoseOfTorchChunk) {
  // length, parts, sizes
  EXPECT_EQ(chunk_sizes(0, 3), (Dims{0, 0, 0}));
  EXPECT_EQ(chunk_sizes(2, 3), (Dims{1, 1, 0}));
  EXPECT_EQ(chunk_sizes(5, 1), (Dims{5}));
  EXPECT_EQ(chunk_sizes(5, 4), (Dims{2, 2, 1, 0}));
  EXPECT_EQ(chunk_sizes(10, 4), (Dims{3, 3, 3, 1}));
  EXPECT_EQ(chunk_sizes(17, 4), (Dims{5, 5, 5, 2}));
}

struct Case {
  Dims sizes, mesh;
  std::vector<Placement> placements;
  std::string holdings;
};

TEST(LayoutTest, BoxesFollowThePlacements) {
  // sizes, mesh, placements, rank[box] of every member
  const std::vector<Case> cases = {
      {{}, {2}, {P()}, "0[] 1[]"},
      {{0, 2}, {2}, {P::shard(0)}, "0[0:0, 0:2] 1[0:0, 0:2]"},
      {{6}, {1}, {P::shard(0)}, "0[0:6]"},
      {{2}, {3}, {P::shard(0)}, "0[0:1] 1[1:2] 2[2:2]"},
      {{11}, {3}, {P::shard(-1)}, "0[0:4] 1[4:8] 2[8:11]"},
      {{6, 2}, {2}, {P::shard(0)}, "0[0:3, 0:2] 1[3:6, 0:2]"},
      {{8}, {4}, {P::shard(0, {1, 3, 0, 4})}, "0[0:1] 1[1:4] 2[4:4] 3[4:8]"},
      {{5}, {2}, {P::partial()}, "0[0:5] 1[0:5]"},
      {{3, 3}, {2, 2}, {P::shard(1), P::shard(0)}, "0[0:2, 0:2] 1[2:3, 0:2] 2[0:2, 2:3] 3[2:3, 2:3]"},
      {{5}, {2, 2}, {P(), P::shard(0)}, "0[0:3] 1[3:5] 2[0:3] 3[3:5]"},
      {{5}, {2, 2}, {P::shard(0), P::partial()}, "0[0:3] 1[0:3] 2[3:5] 3[3:5]"},
      {{11}, {2, 3}, {P::shard(0), P::shard(0)}, "0[0:2] 1[2:4] 2[4:6] 3[6:8] 4[8:10] 5[10:11]"},
      {{9}, {2, 2}, {P::shard(0, {6, 3}), P::shard(0)}, "0[0:3] 1[3:6] 2[6:8] 3[8:9]"},
      {{8}, {2, 2}, {P::shard(0), P::shard(0, {1, 3})}, "0[0:1] 1[1:4] 2[4:5] 3[5:8]"},
      {{9}, {2, 2}, {P::shard(0), P::shard(0, {1, 4, 3, 1})}, "0[0:1] 1[1:5] 2[5:8] 3[8:9]"},
      {{7, 2}, {2, 1, 2}, {P::shard(0), P::shard(1), P::shard(0)}, "0[0:2, 0:2] 1[2:4, 0:2] 2[4:6, 0:2] 3[6:7, 0:2]"},
      {{4},
       {2, 2, 2},
       {P::shard(0), P::shard(0), P::shard(0)},
       "0[0:1] 1[1:1] 2[1:2] 3[2:2] 4[2:3] 5[3:3] 6[3:4] 7[4:4]"},
      {{8},
       {2, 2, 2},
       {P::shard(0), P::shard(0), P::shard(0, {1, 1, 2, 0, 0, 2, 1, 1})},
       "0[0:1] 1[1:2] 2[2:4] 3[4:4] 4[4:4] 5[4:6] 6[6:7] 7[7:8]"}};
  for (const Case& c : cases) {
    const Layout layout(c.sizes, grid(c.mesh), c.placements);
    EXPECT_EQ(holdings(layout), c.holdings) << to_string(layout);
  }
}

TEST(LayoutTest, ShardsFollowTheOrderOfTheRanks) {
  const Layout layout({5}, grid({3}, {7, 2, 4}), {P::shard(0)});
  EXPECT_EQ(holdings(layout), "7[0:2] 2[2:4] 4[4:5]");
  EXPECT_EQ(words(layout.owners(Box::whole({5}))), "7[0:2] 2[2:4] 4[4:5]");
}

TEST(LayoutTest, NonMemberOwnsNothingAndEmptyShardStaysMember) {
  const Layout layout({2}, grid({3}, {1, 2, 5}), {P::shard(0)});
  EXPECT_TRUE(layout.boxes(0).empty());
  EXPECT_TRUE(layout.boxes(4).empty());
  EXPECT_EQ(layout.local_sizes(5), Dims{0});
}

TEST(LayoutTest, EnumerableShardHoldsSeveralPiecesInTheOrderWritten) {
  const Layout layout({4, 6}, grid({3}),
                      {P::enumerable({{{0, 4}, {4, 2}, 2}, {{0, 2}, {4, 2}, 0}, {{0, 0}, {4, 2}, 2}})});
  EXPECT_EQ(holdings(layout), "0[0:4, 2:4] 2[0:4, 4:6] 2[0:4, 0:2]");
  EXPECT_TRUE(layout.boxes(1).empty());
  EXPECT_EQ(words(layout.owners({{1, 1}, {1, 4}})), "0[1:2, 2:4] 2[1:2, 4:5] 2[1:2, 1:2]");
  expect_words(message_of<c10::ValueError>([&] { layout.local_sizes(2); }),
               {"[local_sizes] rank 2 holds 2 pieces", "boxes(rank)"});
  expect_words(message_of<c10::ValueError>([&] { layout.local_sizes(1); }), {"holds 0 pieces"});
}

TEST(LayoutTest, RaggedShardHoldsRangesOfFlattenedDims) {
  // sizes, mesh, placements, rank[box] of every member
  const std::vector<Case> cases = {
      {{4, 5}, {4}, {P::ragged({0, 1}, {2, 3, 0, 5})}, "0[0:1, 0:4] 1[0:1, 4:5] 1[1:2, 0:5] 3[2:4, 0:5]"},
      {{7, 2}, {2}, {P::ragged({0}, {2, 1})}, "0[0:4, 0:2] 1[4:7, 0:2]"},
      {{2, 2},
       {2, 2},
       {P::ragged({0, 1}, {1, 3}), P()},
       "0[0:1, 0:1] 1[0:1, 0:1] 2[0:1, 1:2] 2[1:2, 0:2] 3[0:1, 1:2] 3[1:2, 0:2]"},
      {{4, 4},
       {2, 2},
       {P::ragged({0, 1}, {1, 3}), P::shard(0)},
       "0[0:1, 0:2] 1[2:3, 0:2] 2[0:1, 2:4] 2[1:2, 0:4] 3[2:3, 2:4] 3[3:4, 0:4]"},
      {{4, 4}, {2, 2}, {P::shard(1), P::ragged({0}, {1, 3})}, "0[0:1, 0:2] 1[1:4, 0:2] 2[0:1, 2:4] 3[1:4, 2:4]"},
      {{0, 4}, {2}, {P::ragged({0, 1}, {1, 3})}, ""}};
  for (const Case& c : cases) {
    const Layout layout(c.sizes, grid(c.mesh), c.placements);
    EXPECT_EQ(holdings(layout), c.holdings) << to_string(layout);
    EXPECT_TRUE(!layout.has_one_box_each() && layout.has_joined_boxes() && !layout.has_listed_boxes());
    EXPECT_EQ(layout.enumerated().has_value(), c.mesh.size() == 1);
  }
  const Layout layout({4, 5, 2}, grid({4}, {3, 1, 0, 2}), {P::ragged({0, 1}, {2, 3, 0, 5})});
  EXPECT_EQ(words(layout.owners({{0, 3, 1}, {2, 2, 1}})), "3[0:1, 3:4, 1:2] 1[0:1, 4:5, 1:2] 1[1:2, 3:5, 1:2]");
  EXPECT_EQ(layout.local_sizes(1), (Dims{6, 2}));
  EXPECT_EQ(layout.flat_sizes(0), (Dims{0, 2}));
  EXPECT_FALSE(layout.flat_sizes(5).has_value());
  EXPECT_EQ(holdings(Layout({4, 5, 2}, layout.grid_ptr(), {*layout.enumerated()})), holdings(layout));
}

TEST(LayoutTest, RaggedShardsOfOneProportionAreEqual) {
  const Layout one({8, 3}, grid({2}), {P::ragged({0}, {1, 3})}), other({8, 3}, grid({2}), {P::ragged({0}, {2, 6})});
  EXPECT_EQ(one, other);
  EXPECT_EQ(one.hash(), other.hash());
  EXPECT_FALSE(one == Layout({8, 3}, grid({2}), {P::ragged({0}, {3, 1})}));
  EXPECT_FALSE(one == Layout({8, 3}, grid({2}), {P::ragged({0, 1}, {1, 3})}));
  EXPECT_EQ(to_string(other.placements()), "[RaggedShard(dims=(0,), local_units=(2, 6))]");
}

TEST(LayoutTest, RaggedShardsThatDoNotFitAreErrors) {
  const auto message = [](Dims sizes, Dims mesh, std::vector<Placement> placements) {
    return message_of<c10::ValueError>([&] { Layout(sizes, grid(mesh), placements); });
  };
  expect_words(message({4}, {3}, {P::ragged({0}, {1, 1})}), {"2 local_units on mesh dim 0 of 3 ranks", "Give 3"});
  expect_words(message({4}, {2, 2}, {P::ragged({0}, {1, 1}), P::ragged({0}, {1, 1})}),
               {"several boxes per rank on mesh dims 0 and 1"});
  expect_words(message_of<c10::IndexError>([&] { Layout({}, grid({2}), {P::ragged({0}, {1, 1})}); }),
               {"flattens 1 dims", "Use Replicate()"});
  const Layout beside({4, 4}, grid({2, 2}), {P::ragged({0}, {1, 1}), P()});
  expect_words(message_of<c10::NotImplementedError>([&] { beside.pieces(); }), {"mesh of several dims"});
}

TEST(LayoutTest, OwnersComeOncePerReplicaAndNeverEmpty) {
  const Layout layout({5}, grid({2, 2}), {P(), P::shard(0)});
  EXPECT_EQ(words(layout.owners({{2}, {2}})), "0[2:3] 1[3:4] 2[2:3] 3[3:4]");
  EXPECT_TRUE(layout.owners({{2}, {0}}).empty());
  EXPECT_EQ(words(layout.owners({{4}, {10}})), "1[4:5] 3[4:5]");
}

TEST(LayoutTest, OwnersFollowTheRowsOfAThirdNestedShard) {
  const Layout layout({8}, grid({2, 2, 2}), {P::shard(0), P::shard(0), P::shard(0, {1, 1, 2, 0, 0, 2, 1, 1})});
  EXPECT_EQ(words(layout.owners({{1}, {6}})), "1[1:2] 2[2:4] 5[4:6] 6[6:7]");
}

TEST(LayoutTest, OwnersOfAScalarAreAllItsReplicas) {
  EXPECT_EQ(words(Layout({}, grid({2}), {P()}).owners(Box::whole({}))), "0[] 1[]");
}

TEST(LayoutTest, ChunkSplitsAreStoredPlainSoEqualLayoutsCompareEqual) {
  // sizes, mesh, placements, stored as
  const std::vector<Case> cases = {
      {{10}, {4}, {P::shard(0, {3, 3, 3, 1})}, "[Shard(0)]"},
      {{10}, {4}, {P::shard(0, {3, 3, 2, 2})}, "[Shard(0, sizes=[3, 3, 2, 2])]"},
      {{0}, {2}, {P::shard(0, {0, 0})}, "[Shard(0)]"},
      {{11}, {2, 3}, {P::shard(0, {6, 5}), P::shard(0, {2, 2, 2, 2, 2, 1})}, "[Shard(0), Shard(0)]"},
      {{8}, {2, 2}, {P::shard(0), P::shard(0, {2, 2})}, "[Shard(0), Shard(0)]"},
      {{8}, {2, 2}, {P::shard(0), P::shard(0, {1, 3, 1, 3})}, "[Shard(0), Shard(0, sizes=[1, 3])]"},
      {{8}, {2, 2}, {P::shard(0), P::shard(-1, {2, 2, 1, 3})}, "[Shard(0), Shard(0, sizes=[2, 2, 1, 3])]"}};
  for (const Case& c : cases)
    EXPECT_EQ(to_string(Layout(c.sizes, grid(c.mesh), c.placements).placements()), c.holdings);

  const Layout plain({10}, grid({4}), {P::shard(0)}), spelled({10}, grid({4}), {P::shard(-1, {3, 3, 3, 1})});
  EXPECT_EQ(plain, spelled);
  EXPECT_EQ(plain.hash(), spelled.hash());
}

TEST(LayoutTest, LayoutsDifferBySizesGridAndPlacements) {
  const Layout layout({8}, grid({4}), {P::shard(0)});
  EXPECT_FALSE(layout == Layout({9}, grid({4}), {P::shard(0)}));
  EXPECT_FALSE(layout == Layout({8}, grid({4}, {0, 1, 3, 2}), {P::shard(0)}));
  EXPECT_FALSE(layout == Layout({8}, grid({4}), {P()}));
}

TEST(LayoutTest, QuestionsAreAskedOfAllMeshDims) {
  const Layout mixed({8}, grid({2, 2}), {P(), P::partial()}), copied({8}, grid({2, 2}), {P(), P()});
  EXPECT_TRUE(mixed.has_terms());
  EXPECT_FALSE(mixed.is_replicated());
  EXPECT_TRUE(copied.is_replicated());
  EXPECT_FALSE(copied.has_terms());
  const Layout inner({8, 8}, grid({2, 2}), {P(), P::shard(1)}),
      pieces({4}, grid({2}), {P::enumerable({{{0}, {4}, 1}})});
  EXPECT_FALSE(inner.splits(0));
  EXPECT_TRUE(inner.splits(1));
  EXPECT_TRUE(inner.has_one_box_each());
  EXPECT_FALSE(pieces.splits(0));
  EXPECT_TRUE(pieces.has_listed_boxes() && !pieces.has_one_box_each());
  EXPECT_EQ(pieces.pieces().size(), 1U);
}

TEST(LayoutTest, PartsAreNumberedAsTheirIntervals) {
  const Layout nested({11, 4}, grid({2, 2, 3}), {P::shard(0), P::shard(1), P::shard(0)});
  EXPECT_EQ(nested.n_parts(0), 6);
  EXPECT_EQ(nested.n_parts(1), 2);
  for (int64_t index = 0; index < nested.grid().size(); ++index) {
    const Dims coord{index / 6, index / 3 % 2, index % 3};
    for (int64_t dim = 0; dim < 2; ++dim)
      EXPECT_EQ(nested.shard_intervals(dim)[nested.part_at(dim, coord)], nested.box_at(coord).interval(dim));
  }
  EXPECT_EQ(Layout({4}, grid({3}), {P()}).n_parts(0), 1);
}

TEST(LayoutTest, OneRankOfEachReplicaCounts) {
  const Layout layout({6}, grid({2, 3, 2}), {P(), P::shard(0), P::partial()});
  int64_t n = 0;
  for (int64_t index = 0; index < 12; ++index) n += layout.is_first_replica({index / 6, index / 2 % 3, index % 2});
  EXPECT_EQ(n, 6);  // the terms along the last mesh dim differ
  EXPECT_TRUE(layout.is_first_replica({0, 2, 1}));
  EXPECT_FALSE(layout.is_first_replica({1, 2, 1}));
}

TEST(LayoutTest, BoxesAreCountedInBrief) {
  EXPECT_EQ(placements_in_brief(Layout({6}, grid({2}), {P::shard(0)})), "[Shard(0)]");
  EXPECT_EQ(placements_in_brief(Layout({6}, grid({2}), {P::ragged({0}, {1, 2})})),
            "[RaggedShard(dims=(0,), local_units=(1, 2))]");
  EXPECT_EQ(placements_in_brief(Layout({4}, grid({2}), {P::enumerable({{{0}, {3}, 1}, {{3}, {1}, 0}})})),
            "EnumerableShard of 2 pieces");
}

TEST(LayoutTest, IntervalsListEveryPieceOfADimOutermostFirst) {
  const Layout layout({11, 4}, grid({2, 3}), {P::shard(0), P::shard(0)});
  const std::vector<Interval> expected = {{0, 2}, {2, 4}, {4, 6}, {6, 8}, {8, 10}, {10, 11}};
  EXPECT_EQ(layout.shard_intervals(0), expected);
  EXPECT_EQ(layout.shard_intervals(1), std::vector<Interval>({{0, 4}}));
}

/// Where a slice of [begin, end) puts an index.
auto slice(int64_t begin, int64_t end) {
  return [=](int64_t index) { return std::clamp(index, begin, end) - begin; };
}

TEST(LayoutTest, ASliceLeavesEveryRankWhatItKeepsOfItsBox) {
  const Layout flat({10}, grid({4}), {P::shard(0)});
  EXPECT_EQ(holdings(Layout({5}, flat.grid_ptr(), flat.resized(0, slice(2, 7)))), "0[0:1] 1[1:4] 2[4:5] 3[5:5]");

  const Layout nested({11, 3}, grid({2, 3}), {P::shard(0), P::shard(0)});  // 0:2 2:4 4:6 | 6:8 8:10 10:11
  const Layout sliced({6, 3}, nested.grid_ptr(), nested.resized(0, slice(3, 9)));
  EXPECT_EQ(to_string(sliced.placements()), "[Shard(0), Shard(0, sizes=[0, 1, 2, 2, 1, 0])]");
  EXPECT_EQ(holdings(sliced), "0[0:0, 0:3] 1[0:1, 0:3] 2[1:3, 0:3] 3[3:5, 0:3] 4[5:6, 0:3] 5[6:6, 0:3]");
}

TEST(LayoutTest, ScalingKeepsNestedShardsAndOtherDims) {
  const Layout layout({5, 3}, grid({2, 2, 2}), {P::shard(0), P::shard(1), P::shard(0)});
  const auto doubled = layout.resized(0, [](int64_t index) { return 2 * index; });
  EXPECT_EQ(to_string(Layout({10, 3}, layout.grid_ptr(), doubled).placements()),
            "[Shard(0, sizes=[6, 4]), Shard(1), Shard(0, sizes=[4, 2, 2, 2])]");
  const auto same = layout.resized(0, [](int64_t index) { return index; });
  EXPECT_EQ(Layout({5, 3}, layout.grid_ptr(), same), layout);
}

TEST(LayoutTest, ASliceOfPiecesKeepsEachOnItsRank) {
  const Layout layout({6, 2}, grid({2}),
                      {P::enumerable({{{0, 0}, {2, 2}, 0}, {{4, 0}, {2, 2}, 0}, {{2, 0}, {2, 2}, 1}})});
  EXPECT_EQ(holdings(Layout({3, 2}, layout.grid_ptr(), layout.resized(0, slice(1, 4)))),
            "0[0:1, 0:2] 0[3:3, 0:2] 1[1:3, 0:2]");
}

TEST(LayoutTest, PrintsSizesPlacementsAndMesh) {
  EXPECT_EQ(to_string(Layout({11, 5}, grid({2, 3}), {P::shard(0), P()})),
            "[11, 5] as [Shard(0), Replicate()] on 2x3 ranks");
  EXPECT_EQ(to_string(Layout({}, grid({1}), {P()})), "[] as [Replicate()] on 1 rank");
}

TEST(RankGridTest, CoordAndRankAreInverse) {
  const auto ranks = grid({2, 3}, {5, 3, 1, 0, 2, 9});
  for (const int64_t rank : ranks->ranks) EXPECT_EQ(ranks->rank_at(*ranks->coord_of(rank)), rank);
  EXPECT_EQ(*ranks->coord_of(2), (Dims{1, 1}));
  for (const int64_t rank : {-1, 4, 6, 100}) EXPECT_FALSE(ranks->coord_of(rank));
}

TEST(RankGridTest, RefusesWhatIsNoMesh) {
  expect_words(message_of<c10::ValueError>([] { check({{2, 2}, {0, 1, 2}}); }),
               {"[mesh] shape [2, 2]", "4 places for 3 ranks"});
  expect_words(message_of<c10::ValueError>([] { check({{3}, {0, 2, 0}}); }), {"duplicate rank 0", "[0, 2, 0]"});
  expect_words(message_of<c10::ValueError>([] { check({{2}, {-1, 2}}); }), {"rank -1"});
  expect_words(message_of<c10::ValueError>([] { check({{0}, {}}); }), {"extent below 1"});
  expect_words(message_of<c10::ValueError>([] { check({{int64_t{1} << 32, int64_t{1} << 32}, {}}); }),
               {"[mesh] shape [4294967296, 4294967296]", "for 0 ranks"});
}

struct Misfit {
  Dims sizes, mesh;
  std::vector<Placement> placements;
  std::vector<std::string> words;
};

TEST(LayoutTest, MisfitsAreNamedWithTheirNumbers) {
  // sizes, mesh, placements, key words
  const std::vector<Misfit> misfits = {
      {{-1}, {2}, {P()}, {"[layout] tensor sizes [-1]", "negative"}},
      {{int64_t{1} << 32, int64_t{1} << 32},
       {2},
       {P::shard(0)},
       {"[layout] tensor sizes [4294967296, 4294967296]", "above 2^62"}},
      {{0, int64_t{1} << 32, int64_t{1} << 32}, {2}, {P()}, {"above 2^62"}},
      {{8}, {2, 2}, {P()}, {"1 placements [Replicate()]", "2 dims [2, 2]"}},
      {{8},
       {2},
       {P::shard(0, {1, 3, 4})},
       {"Shard(0, sizes=[1, 3, 4]) has 3 sizes", "2 coordinates of mesh dim 0", "Give 2"}},
      {{8}, {2}, {P::shard(0, {1, 3})}, {"sizes [1, 3] of Shard(0, sizes=[1, 3]) add up to 4", "tensor dim 0 has 8"}},
      {{0},
       {4},
       {P::shard(0, Dims(4, int64_t{1} << 62))},
       {"add up to 9223372036854775807", "tensor dim 0 has 0 elements"}},
      {{8}, {2, 2}, {P::shard(0), P::shard(0, {1, 2, 3})}, {"has 3 sizes", "Give 2 sizes, or 4"}},
      {{9}, {2, 2}, {P::shard(0), P::shard(0, {1, 4})}, {"sizes [1, 4]", "piece [5, 9) of tensor dim 0 has 4"}},
      {{9}, {2, 2}, {P::shard(0), P::shard(0, {1, 4, 2, 3})}, {"sizes [2, 3]", "add up to 5", "piece [5, 9)"}},
      {{4}, {2, 1}, {P::enumerable({{{0}, {4}, 0}}), P()}, {"EnumerableShard is used on mesh dim 0", "Flatten"}},
      {{4}, {2}, {P::enumerable({{{0}, {4}, 2}})}, {"rank 2 of the piece [0:4]", "not in the mesh of ranks [0, 1]"}},
      {{4}, {2}, {P::enumerable({{{0}, {5}, 1}})}, {"the piece [0:5] of rank 1", "outside the tensor of sizes [4]"}},
      {{4}, {2}, {P::enumerable({{{0, 0}, {4, 1}, 1}})}, {"has 2 dims", "the tensor has 1 dims [4]"}},
      {{4, 4},
       {2},
       {P::enumerable({{{0, 0}, {4, 2}, 0}, {{0, 2}, {3, 2}, 1}})},
       {"leave a hole: [3:4, 2:4]", "[4, 4]"}},
      {{4}, {2}, {P::enumerable({})}, {"leave a hole: [0:4]"}}};
  for (const Misfit& m : misfits) {
    expect_words(message_of<c10::ValueError>([&] { Layout(m.sizes, grid(m.mesh), m.placements); }), m.words);
  }
}

TEST(LayoutTest, ShardOfADimThatDoesNotExistIsAnIndexError) {
  EXPECT_EQ(message_of<c10::IndexError>([] { Layout({11, 5}, grid({2}), {P::shard(2)}); }),
            "[layout] tensor dim 2 of Shard(2) does not exist: the tensor has 2 dims [11, 5]. Use a dim in [-2, 2).");
  expect_words(message_of<c10::IndexError>([] { Layout({11, 5}, grid({2}), {P::shard(-3)}); }), {"Shard(-3)"});
  expect_words(message_of<c10::IndexError>([] { Layout({}, grid({2}), {P::shard(0)}); }), {"Use Replicate()"});
}

TEST(LayoutTest, MeshOfALayoutIsCheckedToo) {
  expect_words(message_of<c10::ValueError>([] { Layout({4}, grid({2}, {1, 1}), {P::shard(0)}); }),
               {"duplicate rank 1"});
  expect_words(message_of<c10::ValueError>([] { Layout({4}, nullptr, {P::shard(0)}); }), {"mesh is null"});
}

/// Layouts of any kind, drawn by chance: the same ones in every run.
class RandomLayout {
 public:
  explicit RandomLayout(uint32_t seed) : random_(seed) {}

  Layout draw() {
    Dims sizes(below(3)), mesh(1 + below(3));
    for (int64_t& size : sizes) size = below(12);
    for (int64_t& extent : mesh) extent = 1 + below(3);
    auto ranks = std::vector<int64_t>(grid(mesh)->ranks);
    for (int64_t& rank : ranks) rank = 2 * rank + 1;
    std::shuffle(ranks.begin(), ranks.end(), random_);
    const auto mesh_of_odd_ranks = grid(mesh, ranks);
    std::vector<Placement> placements;
    for (size_t mesh_dim = 0; mesh_dim < mesh.size(); ++mesh_dim)
      placements.push_back(draw_placement(sizes, mesh, placements));
    return Layout(sizes, mesh_of_odd_ranks, placements);
  }

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % n); }

  Box box_within(c10::IntArrayRef sizes) {
    Box box = Box::whole(sizes);
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      const int64_t begin = below(sizes[dim] + 1);
      box.set_interval(dim, {begin, begin + below(sizes[dim] - begin + 1)});
    }
    return box;
  }

 private:
  Placement draw_placement(const Dims& sizes, const Dims& mesh, const std::vector<Placement>& outer) {
    const int64_t kind = below(5), n_dims = static_cast<int64_t>(sizes.size());
    if (kind == 0 || n_dims == 0) return P::replicate();
    if (kind == 1) return P::partial();
    const int64_t dim = below(n_dims);
    if (kind == 2) return P::shard(dim - n_dims);
    const Dims outer_mesh(mesh.begin(), mesh.begin() + outer.size());
    std::vector<int64_t> lengths;  // a row per piece that the outer mesh dims leave
    for (const Interval piece : Layout(sizes, grid(outer_mesh), outer).shard_intervals(dim)) {
      int64_t rest = piece.length();
      for (int64_t coord = 1; coord < mesh[outer.size()]; ++coord) {
        lengths.push_back(below(rest + 1));
        rest -= lengths.back();
      }
      lengths.push_back(rest);
    }
    return P::shard(dim, lengths);
  }

  std::mt19937 random_;
};

/// The boxes of the ranks at coordinate 0 of every mesh dim that does not shard.
std::vector<Box> one_replica(const Layout& layout) {
  std::vector<Box> boxes;
  for (const int64_t rank : layout.grid().ranks) {
    const Dims coord = *layout.grid().coord_of(rank);
    bool first = true;
    for (size_t mesh_dim = 0; mesh_dim < coord.size(); ++mesh_dim) {
      first = first && (layout.placements()[mesh_dim].is_shard() || coord[mesh_dim] == 0);
    }
    if (first) boxes.push_back(layout.box_at(coord));
  }
  return boxes;
}

TEST(LayoutTest, AnyLayoutCoversTheTensorOnce) {
  RandomLayout random(1);
  for (int i = 0; i < 500; ++i) {
    const Layout layout = random.draw();
    const auto boxes = one_replica(layout);
    EXPECT_FALSE(find_overlap(boxes)) << to_string(layout);
    EXPECT_FALSE(find_hole(Box::whole(layout.sizes()), boxes)) << to_string(layout);
  }
}

TEST(LayoutTest, OwnersAgreeWithBoxesForAnyLayoutAndQuery) {
  RandomLayout random(2);
  for (int i = 0; i < 500; ++i) {
    const Layout layout = random.draw();
    const Box query = i % 2 == 0 ? Box::whole(layout.sizes()) : random.box_within(layout.sizes());
    std::vector<OwnedBox> expected;
    for (const int64_t rank : layout.grid().ranks) {
      for (const Box& box : layout.boxes(rank)) {
        const Box part = intersect(box, query);
        if (!part.empty()) expected.push_back({rank, part});
      }
    }
    EXPECT_EQ(words(layout.owners(query)), words(expected)) << to_string(layout) << " " << to_string(query);
  }
}

TEST(LayoutTest, AnyLayoutEqualsTheOneRebuiltFromItsOwnPlacements) {
  RandomLayout random(3);
  for (int i = 0; i < 200; ++i) {
    const Layout layout = random.draw();
    EXPECT_EQ(Layout(layout.sizes(), layout.grid_ptr(), layout.placements().vec()), layout);
    for (int64_t dim = 0; dim < layout.dim(); ++dim) {
      const auto same = layout.resized(dim, [](int64_t index) { return index; });
      EXPECT_EQ(Layout(layout.sizes(), layout.grid_ptr(), same), layout) << to_string(layout);
    }
  }
}

TEST(LayoutTest, ASliceOfAnyLayoutLeavesEveryRankItsPart) {
  RandomLayout random(4);
  for (int i = 0; i < 300; ++i) {
    const Layout layout = random.draw();
    if (layout.dim() == 0) continue;
    const Interval kept = random.box_within(layout.sizes()).interval(0);
    Dims sizes(layout.sizes().begin(), layout.sizes().end());
    sizes[0] = kept.length();
    const Layout sliced(sizes, layout.grid_ptr(), layout.resized(0, slice(kept.begin, kept.end)));
    for (const int64_t rank : layout.grid().ranks) {
      const Interval held = layout.boxes(rank)[0].interval(0);
      const auto moved = slice(kept.begin, kept.end);
      EXPECT_EQ(sliced.local_sizes(rank)[0], moved(held.end) - moved(held.begin)) << to_string(layout);
    }
  }
}

}  // namespace
}  // namespace shardwise::layout_test
