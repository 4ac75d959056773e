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
    bool is_whole, divides, places_boxes, is_chunk, is_linear;
    std::optional<Reduce> terms;
    int64_t split_dim;
  };
  const std::vector<Answers> cases = {
      {Placement(), true, false, false, false, true, {}, -1},
      {Placement::shard(1), false, true, false, true, true, {}, 1},
      {Placement::shard(0, {1, 2}), false, true, false, false, true, {}, 0},
      {Placement::enumerable({{{0}, {3}, 0}}), false, true, true, false, true, {}, -1},
      {Placement::ragged({0}, {1, 2}), false, true, true, false, true, {}, -1},
      {Placement::partial(), false, false, false, false, true, Reduce::kSum, -1},
      {Placement::partial(Reduce::kAvg), false, false, false, false, true, Reduce::kAvg, -1},
      {Placement::partial(Reduce::kMax), false, false, false, false, false, Reduce::kMax, -1}};
  for (const Answers& c : cases) {
    const Placement& p = c.placement;
    EXPECT_EQ(p.is_whole(), c.is_whole) << to_string(p);
    EXPECT_EQ(p.divides(), c.divides) << to_string(p);
    EXPECT_EQ(p.places_boxes(), c.places_boxes) << to_string(p);
    EXPECT_EQ(p.is_chunk(), c.is_chunk) << to_string(p);
    EXPECT_EQ(p.is_linear(), c.is_linear) << to_string(p);
    EXPECT_EQ(p.terms(), c.terms) << to_string(p);
    EXPECT_EQ(p.split_dim(), c.split_dim) << to_string(p);
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

TEST(PlacementTest, NegativeDimsCountFromTheBack) {
  EXPECT_EQ(Placement::shard(-1, {1, 2}).with_dim_from_zero(3), Placement::shard(2, {1, 2}));
  EXPECT_EQ(Placement::shard(-4).with_dim_from_zero(3), Placement::shard(-4));  // Layout reports it
  EXPECT_EQ(Placement::partial().with_dim_from_zero(3), Placement::partial());
  EXPECT_TRUE(Placement::shard(-3).fits_dims(3) && Placement::shard(2).fits_dims(3) && Placement().fits_dims(0));
  EXPECT_FALSE(Placement::shard(-4).fits_dims(3) || Placement::shard(3).fits_dims(3));
}

TEST(PlacementTest, PlacementsAreAlikeWhateverTheirSizes) {
  EXPECT_TRUE(Placement::shard(0).is_alike(Placement::shard(0, {1, 2})));
  EXPECT_FALSE(Placement::shard(0).is_alike(Placement::shard(1)));
  EXPECT_FALSE(Placement::partial().is_alike(Placement::partial(Reduce::kMax)));
  EXPECT_FALSE(Placement().is_alike(Placement::partial()));
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
  EXPECT_TRUE(ragged.divides() && ragged.places_boxes());
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
    expect_words(message(dims, {1, 1}), {"[RaggedShard]", "not the leading dims", "Use dims=(0,"});
  expect_words(message({0}, {2, -1}), {"local_units=(2, -1)", "negative", "Use 0"});
  expect_words(message({0}, {0, 0}), {"all zero"});
  expect_words(message({0}, {}), {"empty"});
}

}  // namespace
}  // namespace shardwise::placement_test
