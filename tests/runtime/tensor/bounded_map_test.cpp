#include "runtime/tensor/bounded_map.h"

#include <gtest/gtest.h>

namespace shardwise::bounded_map_test {
namespace {

using Map = BoundedMap<int, int, 8>;

TEST(BoundedMapTest, AnEntryInUseStays) {
  Map map;
  map.insert(-1, 7);
  for (int i = 0; i < 100; ++i) {
    map.insert(i, i);
    EXPECT_LE(map.size(), 8);
    ASSERT_NE(map.find(-1), nullptr) << i;
    EXPECT_EQ(*map.find(-1), 7);
  }
  EXPECT_EQ(map.find(0), nullptr);
  EXPECT_EQ(*map.find(99), 99);
}

TEST(BoundedMapTest, AKeyHasOneValue) {
  Map map;
  map.insert(1, 10);
  for (int i = 2; i < 6; ++i) map.insert(i, i);  // 1 is among the older entries now
  map.insert(1, 11);
  EXPECT_EQ(*map.find(1), 11);
  EXPECT_EQ(map.size(), 5);
  map.erase(1);
  EXPECT_EQ(map.find(1), nullptr);
}

TEST(BoundedMapTest, UnwantedEntriesAreErasedFromBothHalves) {
  Map map;
  for (int i = 0; i < 6; ++i) map.insert(i, i);
  map.erase_if([](int value) { return value % 2 == 0; });
  for (int i = 0; i < 6; ++i) EXPECT_EQ(map.find(i) != nullptr, i % 2 == 1) << i;
}

}  // namespace
}  // namespace shardwise::bounded_map_test
