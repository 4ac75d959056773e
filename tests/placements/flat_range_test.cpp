#include "placements/flat_range.h"

#include <gtest/gtest.h>

#include <limits>

namespace shardwise::detail {
namespace {

std::string words(const std::vector<Box>& boxes) {
  std::string text;
  for (const Box& box : boxes) text += to_string(box) + " ";
  return text;
}

TEST(FlatRangeTest, RangesAdjoinInProportion) {
  // length, units, where each begins and the last ends
  const std::vector<std::tuple<int64_t, Dims, Dims>> cases = {
      {20, {2, 3, 0, 5}, {0, 4, 10, 10, 20}}, {35, {2, 3, 0, 5}, {0, 7, 17, 17, 35}},
      {2, {1, 1, 1}, {0, 0, 1, 2}},           {0, {1, 2}, {0, 0, 0}},
      {7, {0, 0, 1}, {0, 0, 0, 7}},           {7, {4, 0}, {0, 7, 7}},
  };
  for (const auto& [length, units, bounds] : cases)
    for (size_t coord = 0; coord < units.size(); ++coord) {
      const Interval expected{bounds[coord], bounds[coord + 1]};
      EXPECT_EQ(FlatRanges(units).at(length, static_cast<int64_t>(coord)), expected) << length << " at " << coord;
    }
}

TEST(FlatRangeTest, LengthsTimesUnitsMayExceed64Bits) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(FlatRanges({kMost, kMost}).at(kMost, 0), (Interval{0, kMost / 2}));
  EXPECT_EQ(FlatRanges({kMost, kMost}).at(kMost, 1), (Interval{kMost / 2, kMost}));
}

TEST(FlatRangeTest, BoxesFollowEachOtherInMemory) {
  // box, flattened dims, range, boxes
  const std::vector<std::tuple<Box, int64_t, Interval, std::string>> cases = {
      {Box::whole({6, 2}), 1, {1, 4}, "[1:4, 0:2] "},
      {Box::whole({6, 2}), 1, {4, 4}, ""},
      {Box::whole({4, 5}), 2, {3, 14}, "[0:1, 3:5] [1:2, 0:5] [2:3, 0:4] "},
      {Box::whole({4, 5}), 2, {5, 15}, "[1:3, 0:5] "},
      {Box::whole({4, 5}), 2, {6, 8}, "[1:2, 1:3] "},
      {Box::whole({4, 5}), 2, {6, 10}, "[1:2, 1:5] "},
      {Box::whole({4, 5}), 2, {6, 13}, "[1:2, 1:5] [2:3, 0:3] "},
      {Box::whole({2, 3, 4}), 3, {2, 23}, "[0:1, 0:1, 2:4] [0:1, 1:3, 0:4] [1:2, 0:2, 0:4] [1:2, 2:3, 0:3] "},
      {{{1, 2}, {3, 2}}, 2, {1, 5}, "[1:2, 3:4] [2:3, 2:4] [3:4, 2:3] "},
      {Box::whole({4, 0}), 1, {1, 2}, "[1:2, 0:0] "},
  };
  for (const auto& [box, n_flattened, range, expected] : cases)
    EXPECT_EQ(words(boxes_of_range(box, n_flattened, range)), expected)
        << to_string(box) << " " << range.begin << ":" << range.end;
}

}  // namespace
}  // namespace shardwise::detail
