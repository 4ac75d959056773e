#include "placements/split_order.h"

#include "tests/placements/layouts.h"

#include <gtest/gtest.h>

namespace shardwise::placement_test {
namespace {

using Order = std::vector<int64_t>;

Placement rows() { return Placement::shard(0); }
Placement columns() { return Placement::shard(1); }
Placement whole() { return Placement::replicate(); }

TEST(SplitOrderTest, FactorsTellTheOrderAndBack) {
  const struct {
    UserPlacements written;
    Dims shape;
    Order order;
  } cases[] = {
      {{{rows(), rows()}, {1, 1}}, {2, 3}, {0, 1}},
      {{{rows(), rows()}, {3, 1}}, {2, 3}, {1, 0}},
      {{{rows(), whole(), rows()}, {3, 1, 1}}, {2, 2, 3}, {2, 1, 0}},
      {{{rows(), rows(), rows()}, {6, 3, 1}}, {4, 2, 3}, {2, 1, 0}},
      {{{rows(), rows(), rows()}, {2, 2, 1}}, {4, 3, 2}, {2, 0, 1}},
      {{{rows(), rows(), rows()}, {3, 1, 1}}, {4, 3, 2}, {1, 0, 2}},
      {{{rows(), columns(), rows(), columns()}, {2, 5, 1, 1}}, {4, 3, 2, 5}, {2, 3, 0, 1}},
  };
  for (const auto& [written, shape, order] : cases) {
    EXPECT_EQ(order_of_splits(written, shape), order) << to_string(written);
    const auto plain = reordered(c10::ArrayRef<Placement>(written.placements), order);
    EXPECT_EQ(written_in_order(plain, order, shape), written) << to_string(written);
  }
}

TEST(SplitOrderTest, OtherFactorsAreErrors) {
  const auto error = [](const UserPlacements& written, const Dims& shape) {
    return message_of<c10::ValueError>([&] { order_of_splits(written, shape); });
  };
  expect_words(
      error({{rows(), rows()}, {2, 1}}, {2, 3}),
      {"no order of the dims of a mesh of shape [2, 3] splits as [_StridedShard(0, split_factor=2), Shard(0)]"});
  expect_words(error({{rows(), whole()}, {2, 1}}, {2, 2}), {"no order"});
  expect_words(error({{rows(), rows()}, {1, 2}}, {2, 2}), {"no order"});
  expect_words(error({{rows(), Placement::shard(0, {1, 2, 0})}, {3, 1}}, {2, 3}), {"explicit sizes"});
}

TEST(SplitOrderTest, ExplicitSizesAreNotWrittenAgainstTheOrder) {
  const std::vector<Placement> placements{rows(), Placement::shard(0, {1, 2})};
  EXPECT_EQ(written_in_order(placements, {1, 0}, {2, 2}), std::nullopt);
  EXPECT_TRUE(written_in_order(placements, {0, 1}, {2, 2}).has_value());
}

TEST(SplitOrderTest, DimsOutOfRangeStay) {
  const UserPlacements written{
      {Placement::shard(-1), Placement::shard(-2), Placement::shard(-3), Placement::shard(2), whole()},
      {1, 1, 1, 1, 1}};
  EXPECT_EQ(to_string(resolved(written, 2)), "[Shard(1), Shard(0), Shard(-3), Shard(2), Replicate()]");
}

TEST(SplitOrderTest, AFactorWithoutALaterSplitIsAStridedShard) {
  const auto text = [](UserPlacements written) {
    const UserPlacements result = resolved(std::move(written), 2);
    EXPECT_FALSE(result.is_reordered()) << to_string(result);
    return to_string(result);
  };
  EXPECT_EQ(text({{Placement::shard(-2)}, {3}}), "[_StridedShard(0, split_factor=3)]");
  EXPECT_EQ(text({{rows(), rows()}, {1, 2}}), "[Shard(0), _StridedShard(0, split_factor=2)]");
  EXPECT_EQ(text({{rows(), columns()}, {2, 1}}), "[_StridedShard(0, split_factor=2), Shard(1)]");
  EXPECT_TRUE(resolved({{rows(), rows()}, {2, 1}}, 2).is_reordered());
}

TEST(SplitOrderTest, RanksFollowTheDims) {
  const RankGrid grid{{2, 3}, {5, 4, 3, 2, 1, 0}};
  EXPECT_EQ(reordered(grid, {1, 0}), (RankGrid{{3, 2}, {5, 2, 4, 1, 3, 0}}));
  EXPECT_EQ(reordered(grid, {0, 1}), grid);
}

}  // namespace
}  // namespace shardwise::placement_test
