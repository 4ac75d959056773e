#include "placements/placement.h"

#include "tests/placements/layouts.h"

#include <gtest/gtest.h>

#include <limits>

namespace shardwise::placement_test {
namespace {

TEST(PlacementTest, PrintsAsTheUserWritesIt) {
  EXPECT_EQ(to_string(Placement()), "Replicate()");
  EXPECT_EQ(to_string(Placement::shard(-1)), "Shard(-1)");
  EXPECT_EQ(to_string(Placement::shard(0, {1, 3, 0, 3})), "Shard(0, sizes=[1, 3, 0, 3])");
  EXPECT_EQ(to_string(Placement::partial()), "Partial(sum)");
  EXPECT_EQ(to_string(Placement::enumerable({{{0, 4}, {8, 2}, 1}})),
            "EnumerableShard([ShardMetadata(offsets=[0, 4], sizes=[8, 2], rank=1)])");
  EXPECT_EQ(to_string({Placement::shard(0), Placement()}), "[Shard(0), Replicate()]");
}

TEST(PlacementTest, LongEnumerableShardsPrintTheirFirstPiecesAndHowManyMore) {
  std::vector<ShardMetadata> pieces;
  for (int64_t i = 0; i < 100; ++i) pieces.push_back({{i}, {1}, i});
  expect_words(to_string(Placement::enumerable(pieces)), {"rank=7)", "... 92 more])"});
}

TEST(PlacementTest, ReduceWordsGoBothWays) {
  for (const Reduce reduce : {Reduce::kSum, Reduce::kAvg, Reduce::kMax, Reduce::kMin, Reduce::kProduct}) {
    EXPECT_EQ(reduce_from_string(to_string(reduce)), reduce);
  }
  expect_words(message_of<c10::ValueError>([] { reduce_from_string("mean"); }),
               {"[Partial] reduce op 'mean'", "sum, avg, max, min, product"});
}

TEST(PlacementTest, EqualByMeaningNotByPointer) {
  EXPECT_EQ(Placement::shard(0, {1, 2}), Placement::shard(0, {1, 2}));
  EXPECT_EQ(Placement::shard(0, {1, 2}).hash(), Placement::shard(0, {1, 2}).hash());
  const std::vector<Placement> differing = {Placement(),
                                            Placement::shard(0),
                                            Placement::shard(1),
                                            Placement::shard(0, {1, 2}),
                                            Placement::shard(0, {2, 1}),
                                            Placement::partial(),
                                            Placement::partial(Reduce::kMax),
                                            Placement::enumerable({{{0}, {3}, 0}}),
                                            Placement::enumerable({{{0}, {3}, 1}})};
  for (size_t i = 0; i < differing.size(); ++i) {
    for (size_t j = 0; j < differing.size(); ++j) {
      EXPECT_EQ(differing[i] == differing[j], i == j);
      EXPECT_EQ(differing[i].hash() == differing[j].hash(), i == j);
    }
  }
}

TEST(PlacementTest, AnswersWhatItDoesToATensor) {
  struct Answers {
    Placement placement;
    bool is_replicate, is_partial, is_linear_partial, is_sharded, is_shard, in_pieces;
  };
  const std::vector<Answers> cases = {{Placement(), true, false, false, false, false, false},
                                      {Placement::shard(1), false, false, false, true, true, false},
                                      {Placement::enumerable({{{0}, {3}, 0}}), false, false, false, true, false, true},
                                      {Placement::partial(), false, true, true, false, false, false},
                                      {Placement::partial(Reduce::kAvg), false, true, true, false, false, false},
                                      {Placement::partial(Reduce::kMax), false, true, false, false, false, false}};
  for (const Answers& c : cases) {
    const Placement& p = c.placement;
    EXPECT_EQ(p.is_replicate(), c.is_replicate) << to_string(p);
    EXPECT_EQ(p.is_partial(), c.is_partial) << to_string(p);
    EXPECT_EQ(p.is_linear_partial(), c.is_linear_partial) << to_string(p);
    EXPECT_EQ(p.is_sharded(), c.is_sharded) << to_string(p);
    EXPECT_EQ(p.is_shard(), c.is_shard) << to_string(p);
    EXPECT_EQ(p.in_pieces(), c.in_pieces) << to_string(p);
  }
  EXPECT_TRUE(Placement::shard(1).is_shard(1));
  EXPECT_FALSE(Placement::shard(1).is_shard(0));
}

TEST(PlacementTest, OrderOfPiecesCountsOnlyWithinARank) {
  const ShardMetadata a{{0}, {2}, 1}, b{{2}, {2}, 0}, c{{4}, {2}, 1};
  EXPECT_EQ(Placement::enumerable({a, b, c}), Placement::enumerable({b, a, c}));
  EXPECT_FALSE(Placement::enumerable({a, b, c}) == Placement::enumerable({c, b, a}));
}

TEST(PlacementTest, WithDimKeepsTheSizes) {
  EXPECT_EQ(Placement::shard(0, {1, 2}).with_dim(3), Placement::shard(3, {1, 2}));
}

TEST(PlacementTest, ShardRefusesNegativeAndMissingSizes) {
  expect_words(message_of<c10::ValueError>([] { Placement::shard(0, {1, -3}); }),
               {"[Shard]", "Shard(0, sizes=[1, -3])", "negative"});
  expect_words(message_of<c10::ValueError>([] { Placement::shard(1, std::vector<int64_t>{}); }),
               {"Shard(1, sizes=[])", "empty"});
}

TEST(PlacementTest, EnumerableShardRefusesPiecesThatOverlap) {
  expect_words(message_of<c10::ValueError>([] { Placement::enumerable({{{0, 0}, {8, 4}, 0}, {{2, 3}, {2, 4}, 1}}); }),
               {"[EnumerableShard] pieces overlap", "offsets=[0, 0], sizes=[8, 4], rank=0",
                "offsets=[2, 3], sizes=[2, 4], rank=1", "[2:4, 3:4]"});
}

TEST(PlacementTest, EnumerableShardRefusesPiecesOfDifferingDimsAndNegativeNumbers) {
  expect_words(message_of<c10::ValueError>([] { Placement::enumerable({{{0, 0}, {8, 4}, 0}, {{8}, {2}, 1}}); }),
               {"has 1 dims, and another piece has 2", "rank=1"});
  expect_words(message_of<c10::ValueError>([] { Placement::enumerable({{{0, 0}, {8}, 0}}); }),
               {"2 offsets and 1 sizes"});
  for (const ShardMetadata& piece :
       {ShardMetadata{{-1}, {2}, 0}, ShardMetadata{{0}, {-2}, 0}, ShardMetadata{{0}, {2}, -1}}) {
    expect_words(message_of<c10::ValueError>([&] { Placement::enumerable({piece}); }), {"negative"});
  }
  expect_words(message_of<c10::ValueError>(
                   [] { Placement::enumerable({{{0, std::numeric_limits<int64_t>::max()}, {8, 2}, 1}}); }),
               {"[EnumerableShard] ShardMetadata(offsets=[0, 9223372036854775807], sizes=[8, 2], rank=1) ends beyond",
                "of dim 1"});
}

TEST(PlacementTest, RaggedShardIsSpelledAndComparedByProportion) {
  const Placement ragged = Placement::ragged({0, 1}, {4, 6, 0, 10});
  EXPECT_EQ(to_string(ragged), "RaggedShard(dims=(0, 1), local_units=(4, 6, 0, 10))");
  EXPECT_EQ(to_string(Placement::ragged({0}, {1})), "RaggedShard(dims=(0,), local_units=(1,))");
  EXPECT_TRUE(ragged.is_sharded() && ragged.in_pieces() && !ragged.is_shard() && !ragged.is_partial());
  EXPECT_EQ(ragged.n_flattened(), 2);
  EXPECT_TRUE(ragged.pieces().empty() && ragged.sizes().empty());
  EXPECT_EQ(ragged, Placement::ragged({0, 1}, {2, 3, 0, 5}));
  EXPECT_EQ(ragged.hash(), Placement::ragged({0, 1}, {2, 3, 0, 5}).hash());
  EXPECT_FALSE(ragged == Placement::ragged({0}, {2, 3, 0, 5}));
  EXPECT_FALSE(ragged == Placement::ragged({0, 1}, {2, 3, 1, 5}));
}

TEST(PlacementTest, RaggedShardRefusesOtherDimsAndUnits) {
  const auto message = [](Dims dims, Dims units) {
    return message_of<c10::ValueError>([&] { Placement::ragged(dims, units); });
  };
  for (const Dims& dims : {Dims{}, Dims{1}, Dims{1, 0}, Dims{0, 0}, Dims{-1}})
    expect_words(message(dims, {1, 1}), {"[RaggedShard]", "not the leading ones", "Use dims=(0,"});
  expect_words(message({0}, {2, -1}), {"local_units=(2, -1)", "negative", "Use 0"});
  expect_words(message({0}, {0, 0}), {"all zero"});
  expect_words(message({0}, {}), {"empty"});
}

}  // namespace
}  // namespace shardwise::placement_test
