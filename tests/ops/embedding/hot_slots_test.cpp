// The rows of a cache against a least-frequently-used cache written out plainly.
#include "ops/embedding/hot_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace shardwise::hot_slots_test {
namespace {

/// Rows in the order of their release, the earliest first, with their counts.
struct PlainLfu {
  struct Row {
    int64_t row;
    int64_t count;
  };
  size_t n_slots;
  std::vector<Row> rows;
  int64_t n_accesses = 0, n_hits = 0, n_evictions = 0;

  auto find(int64_t row) { return std::ranges::find(rows, row, &Row::row); }

  /// One lookup of distinct rows, released at once.
  void look_up(const std::vector<int64_t>& asked) {
    std::set<int64_t> new_ones;
    for (const int64_t row : asked) {
      if (const auto known = find(row); known != rows.end())
        known->count = std::min<int64_t>(known->count + 1, 255), ++n_hits;
      else
        new_ones.insert(row);
    }
    for (const int64_t row : asked) {
      if (!new_ones.contains(row)) continue;
      if (rows.size() == n_slots) {
        const auto is_asked = [&](const Row& each) { return std::ranges::find(asked, each.row) != asked.end(); };
        auto least = rows.end();
        for (auto each = rows.begin(); each != rows.end(); ++each)
          if (!is_asked(*each) && (least == rows.end() || each->count < least->count)) least = each;
        rows.erase(least);
        ++n_evictions;
      }
      rows.push_back({row, 1});
    }
    n_accesses += static_cast<int64_t>(asked.size());
    if (n_accesses >= 10 * static_cast<int64_t>(n_slots)) {
      n_accesses = 0;
      std::ranges::stable_sort(rows, {}, &Row::count);
      for (Row& each : rows) each.count /= 2;
    }
    for (const int64_t row : asked) {  // used last
      const Row used = *find(row);
      rows.erase(find(row));
      rows.push_back(used);
    }
  }
};

std::vector<int64_t> drawn(std::mt19937& random, int64_t n_rows, size_t n) {
  std::geometric_distribution<int64_t> frequent(4.0 / static_cast<double>(n_rows));
  std::set<int64_t> rows;
  while (rows.size() < n) rows.insert(frequent(random) % n_rows);
  return {rows.begin(), rows.end()};
}

TEST(HotSlotsTest, RowsAreThoseOfThePlainRule) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const size_t n_slots = 1 + seed * 7;
    const int64_t n_rows = static_cast<int64_t>(n_slots) * 3 + 2;
    HotSlots slots(static_cast<int64_t>(n_slots));
    PlainLfu plain{n_slots, {}};
    int64_t n_hits = 0, n_evictions = 0;
    for (int step = 0; step < 300; ++step) {
      const std::vector<int64_t> rows =
          drawn(random, n_rows, std::uniform_int_distribution<size_t>(0, n_slots)(random));
      const auto held = slots.hold(rows);
      ASSERT_TRUE(held);
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(slots.row_of(held->slots[i]), rows[i]);
      n_hits += static_cast<int64_t>(rows.size() - held->entered.size());
      for (const HotSlots::Entry& entry : held->entered) n_evictions += entry.left >= 0;
      slots.release(held->slots);
      plain.look_up(rows);
      ASSERT_EQ(n_hits, plain.n_hits) << "seed " << seed << ", step " << step;
      std::set<int64_t> own, expected;
      for (int64_t slot = 0; slot < slots.n_used(); ++slot) own.insert(slots.row_of(slot));
      for (const auto& each : plain.rows) expected.insert(each.row);
      ASSERT_EQ(own, expected) << "seed " << seed << ", step " << step;
    }
    EXPECT_EQ(n_evictions, plain.n_evictions);
    EXPECT_EQ(slots.n_held(), 0);
  }
}

TEST(HotSlotsTest, HeldRowsStay) {
  HotSlots slots(4);
  const auto first = slots.hold(std::vector<int64_t>{10, 11, 12});
  EXPECT_FALSE(slots.hold(std::vector<int64_t>{20, 21}));  // one slot is left
  EXPECT_FALSE(slots.find(std::vector<int64_t>{10, 20})) << "what did not fit must not enter";
  const auto again = slots.hold(std::vector<int64_t>{10, 20});
  ASSERT_TRUE(again);
  slots.release(first->slots);
  EXPECT_EQ(slots.n_held(), 2);
  const auto next = slots.hold(std::vector<int64_t>{30, 31});
  ASSERT_TRUE(next);
  std::set<int64_t> left;
  for (const auto& entry : next->entered) left.insert(entry.left);
  EXPECT_EQ(left, (std::set<int64_t>{11, 12}));
  EXPECT_TRUE(slots.find(std::vector<int64_t>{10, 20, 30, 31}));
}

TEST(HotSlotsTest, ARowThatWasFrequentOnceLeaves) {
  HotSlots slots(2);
  const auto use = [&](int64_t row) { slots.release(slots.hold(std::vector<int64_t>{row})->slots); };
  for (int i = 0; i < 300; ++i) use(0);
  for (int i = 0; i < 200; ++i)
    use(1 + i % 2);  // two rows take turns in the other slot, and halve the first one's count
  EXPECT_FALSE(slots.find(std::vector<int64_t>{0}));
  EXPECT_TRUE(slots.find(std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace shardwise::hot_slots_test
