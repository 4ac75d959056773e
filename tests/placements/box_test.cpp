#include "placements/box.h"

#include "placements/tiling.h"

#include <gtest/gtest.h>

namespace shardwise::box_test {
namespace {

TEST(BoxTest, BoxOfZeroDimsHasOneElement) {
  const Box scalar = Box::whole({});
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(to_string(scalar), "[]");
  EXPECT_EQ(intersect(scalar, scalar), scalar);
}

TEST(BoxTest, PrintsAsPythonSlices) { EXPECT_EQ(to_string(Box{{0, 2}, {4, 3}}), "[0:4, 2:5]"); }

TEST(BoxTest, EmptyWhereAnyDimIsEmpty) {
  EXPECT_TRUE((Box{{0, 2}, {4, 0}}).empty());
  EXPECT_FALSE((Box{{0, 2}, {4, 1}}).empty());
}

TEST(BoxTest, ContainsItselfAndEmptyBoxesAtItsEnd) {
  const Box box{{2, 3}, {4, 5}};
  EXPECT_TRUE(box.contains(box));
  EXPECT_TRUE(box.contains({{6, 3}, {0, 5}}));
  EXPECT_FALSE(box.contains({{5, 3}, {2, 5}}));
  EXPECT_FALSE(box.contains({{1, 3}, {1, 5}}));
}

TEST(BoxTest, DisjointBoxesIntersectInAnEmptyBoxOfSizeZeroNotLess) {
  EXPECT_EQ(to_string(intersect({{0, 0}, {2, 2}}, {{1, 1}, {2, 2}})), "[1:2, 1:2]");
  const Box none = intersect({{0}, {2}}, {{5}, {2}});
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.sizes[0], 0);
}

TEST(TilingTest, OverlapNamesBothPositionsAndIgnoresEmptyBoxes) {
  EXPECT_FALSE(find_overlap({}));
  EXPECT_FALSE(find_overlap({{{0}, {4}}, {{2}, {0}}, {{4}, {1}}}));
  const auto overlap = find_overlap({{{4, 0}, {2, 8}}, {{0, 0}, {2, 8}}, {{1, 7}, {3, 1}}});
  ASSERT_TRUE(overlap);
  EXPECT_EQ(*overlap, std::pair(size_t{1}, size_t{2}));
}

TEST(TilingTest, TwoBoxesOfZeroDimsOverlap) { EXPECT_TRUE(find_overlap({Box::whole({}), Box::whole({})})); }

TEST(TilingTest, ThousandsOfColumnsAreCheckedWithoutComparingAllPairs) {
  std::vector<Box> columns;
  for (int64_t i = 0; i < 4000; ++i) columns.push_back({{0, (i * 7) % 4000}, {8, 1}});
  EXPECT_FALSE(find_overlap(columns));
  EXPECT_FALSE(find_hole(Box::whole({8, 4000}), columns));
  columns.back().sizes[1] = 2;
  EXPECT_TRUE(find_overlap(columns));
}

TEST(TilingTest, HoleIsABoxThatNothingCovers) {
  const Box whole = Box::whole({4, 4});
  EXPECT_EQ(find_hole(whole, {}), whole);
  EXPECT_FALSE(find_hole(whole, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}}));
  EXPECT_EQ(find_hole(whole, {{{0, 0}, {4, 2}}, {{0, 2}, {3, 2}}}), (Box{{3, 2}, {1, 2}}));
  EXPECT_FALSE(find_hole(Box::whole({0, 4}), {}));
  EXPECT_FALSE(find_hole(Box::whole({}), {{{}, {}}}));
  EXPECT_EQ(find_hole(Box::whole({}), {}), Box::whole({}));
}

TEST(TilingTest, AHoleAmongManyBoxesIsFound) {
  constexpr int64_t kRows = 100'000;
  std::vector<Box> rows;
  for (int64_t i = 0; i + 1 < kRows; ++i) rows.push_back({{(i * 7) % (kRows - 1), 0}, {1, 4}});
  EXPECT_EQ(find_hole(Box::whole({kRows, 4}), rows), (Box{{kRows - 1, 0}, {1, 4}}));
  std::vector<Box> cells;
  for (int64_t i = 0; i < 200 * 200; ++i)
    if (i != 77 * 200 + 33) cells.push_back({{i / 200 * 3, i % 200}, {3, 1}});
  EXPECT_EQ(find_hole(Box::whole({600, 200}), cells), (Box{{231, 33}, {3, 1}}));
}

}  // namespace
}  // namespace shardwise::box_test
