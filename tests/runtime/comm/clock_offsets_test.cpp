#include "runtime/comm/clock_offsets.h"

#include "runtime/comm/agreement.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <random>

namespace shardwise::clock_offsets_test {
namespace {

// Barriers whose members enter and leave at random times, by clocks that differ by `offset`: none leaves before all have entered.
TEST(ClockOffsetTest, IsWrongByLessThanTheTightestBounds) {
  std::mt19937_64 random(1);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (const int64_t offset : {int64_t{0}, int64_t{5'000'000'000}, int64_t{-123'456'789}}) {
    std::vector<int64_t> first, other;
    int64_t now = 1'700'000'000'000'000'000;
    int64_t tightest = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 16; ++i) {
      const int64_t enters = now + up_to(50'000), other_enters = now + up_to(50'000);
      const int64_t all_in = std::max(enters, other_enters);
      const int64_t leaves = all_in + up_to(80'000), other_leaves = all_in + up_to(80'000);
      first.insert(first.end(), {enters, leaves});
      other.insert(other.end(), {other_enters + offset, other_leaves + offset});
      tightest = std::min(tightest, (other_leaves - enters) + (leaves - other_enters));
      now = std::max(leaves, other_leaves);
    }
    EXPECT_LE(std::abs(clock_offset(first, other) - offset), tightest / 2 + 1);
  }
}

TEST(ClockOffsetTest, RanksOfOneMachineShareAClock) {
  for (const auto& offsets : on_each_rank(3, [](World& world) { return clock_offsets(*everyone(world)); }))
    EXPECT_EQ(offsets, (std::vector<int64_t>{0, 0, 0}));
  for (const auto& offsets : on_each_rank(1, [](World& world) { return clock_offsets(*everyone(world)); }))
    EXPECT_EQ(offsets, std::vector<int64_t>{0});
}

TEST(GatheredTextsTest, TheFirstMemberHasAll) {
  const std::vector<std::string> own{"zero", "", std::string(100'000, 'x') + '\0' + "end"};
  const auto gathered =
      on_each_rank(3, [&](World& world) { return gathered_texts(*everyone(world), own[world.rank()]); });
  EXPECT_EQ(gathered[0], own);
  EXPECT_TRUE(gathered[1].empty() && gathered[2].empty());
  const auto nothing = on_each_rank(2, [](World& world) { return gathered_texts(*everyone(world), ""); });
  EXPECT_EQ(nothing[0], (std::vector<std::string>{"", ""}));
  const auto alone = on_each_rank(1, [](World& world) { return gathered_texts(*everyone(world), "own"); });
  EXPECT_EQ(alone[0], std::vector<std::string>{"own"});
}

}  // namespace
}  // namespace shardwise::clock_offsets_test
