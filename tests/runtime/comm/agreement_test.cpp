// On three threads, and on processes over Gloo when gloo_main.cpp starts them.
#include "runtime/comm/agreement.h"

#include "runtime/comm/events.h"
#include "runtime/comm/flight_recorder.h"
#include "tests/support/either_world.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shardwise::agreement_test {
namespace {

size_t n_messages(World& world) {
  auto records = FlightRecorder::of_thread(world.rank()).records();
  std::erase_if(records, [](const FlightRecord& record) { return std::string(record.name) == "connect"; });
  return records.size();
}

Facts facts_of(int64_t rank, int64_t n_numbers) {
  Facts facts("a part");
  facts.number(-rank).text(std::string(static_cast<size_t>(rank) * 5, 'x')).maybe(std::nullopt);
  return facts.maybe(Dims{rank, 7}).list(std::vector<int64_t>(n_numbers, rank));
}

void expect_facts_of(int64_t rank, int64_t n_numbers, const Facts& facts) {
  FactReader reader(facts);
  EXPECT_EQ(reader.name(), "a part");
  EXPECT_EQ(reader.number(), -rank);
  EXPECT_EQ(reader.text(), std::string(static_cast<size_t>(rank) * 5, 'x'));
  EXPECT_EQ(reader.maybe(), std::nullopt);
  EXPECT_EQ(reader.maybe(), (Dims{rank, 7}));
  EXPECT_EQ(reader.list(), Dims(n_numbers, rank));
  EXPECT_TRUE(reader.at_end());
  expect_error("there are no more facts", error_of<c10::Error>([&] { reader.number(); }));
}

TEST(AgreementTest, EachRankLearnsAllFactsInOneMessageWhereTheyAreShort) {
  on_ranks([](World& world) {
    const GroupPtr group = everyone(world);
    for (const int64_t longest : {2, 160}) {
      const size_t before = n_messages(world);
      const CommTrace trace;
      const int64_t n_own = world.rank() == 1 ? longest : 0;
      const auto all = agree(*group, "op", facts_of(world.rank(), n_own));
      ASSERT_EQ(all.size(), 3U);
      for (int64_t rank = 0; rank < 3; ++rank) expect_facts_of(rank, rank == 1 ? longest : 0, all[rank]);
      EXPECT_EQ(n_messages(world) - before, longest == 2 ? 1U : 2U);
      EXPECT_EQ(trace.total_count(), 0);
    }
  });
}

/// What a rank whose `fails()` throws tells the others.
template <class Fails>
RankError error_of_rank(const Fails& fails) {
  try {
    fails();
  } catch (const std::exception&) {
    return RankError::current();
  }
  return {};
}

TEST(AgreementTest, TheErrorOfOneRankIsThatOfAll) {
  on_ranks([](World& world) {
    const auto run = [&](int64_t refusing) {
      const RankError error =
          error_of_rank([&] { TORCH_CHECK_TYPE(world.rank() < refusing, "rank ", world.rank(), " has no part"); });
      agree(*everyone(world), "op", Facts("a part"), error);
    };
    for (const int64_t first : {1, 2})
      EXPECT_EQ(error_of<c10::TypeError>([&] { run(first); }),
                fmt::format("rank {} has no part{}", first,
                            world.rank() == first ? "" : fmt::format(" (on rank {})", first)));
    run(3);
    const RankError unknown = error_of_rank([] { throw std::runtime_error("out of luck"); });
    EXPECT_EQ(error_of<c10::Error>([&] { agree(*everyone(world), "op", Facts(), unknown); }),
              world.rank() == 0 ? "out of luck" : "out of luck (on rank 0)");
  });
}

TEST(AgreementTest, NumbersOfEachPairTravelInOneMessage) {
  on_ranks([](World& world) {
    const GroupPtr group = everyone(world);
    const int64_t own = world.rank();
    const size_t before = n_messages(world);
    EXPECT_EQ(gather_alike(*group, "compare", {own, 7}), (std::vector<std::vector<int64_t>>{{0, 7}, {1, 7}, {2, 7}}));
    std::vector<std::vector<int64_t>> to, from;
    for (int64_t rank = 0; rank < 3; ++rank) {  // as many as the receiver's number
      to.emplace_back(rank, 10 * own + rank);
      from.emplace_back(own, 10 * rank + own);
    }
    EXPECT_EQ(exchange_numbers(*group, c10::kCPU, to, {own, own, own}), from);
    EXPECT_EQ(n_messages(world) - before, 2U);
  });
}

TEST(AgreementTest, FactsOfDifferentKindsAreNamed) {
  on_ranks([](World& world) {
    EXPECT_EQ(error_of<c10::ValueError>(
                  [&] { agree(*everyone(world), "from_local", Facts(world.rank() == 2 ? "a wrapper" : "a tensor")); }),
              "[from_local] rank 0 gives a tensor, but rank 2 gives a wrapper. Give the same kind on every rank.");
  });
}

TEST(AgreementTest, EqualFactsAreFoundOutByOneNumber) {
  on_ranks([](World& world) {
    const GroupPtr group = everyone(world);
    const size_t before = n_messages(world);
    EXPECT_TRUE(have_equal(*group, "compare facts", facts_of(1, 100)));
    EXPECT_FALSE(have_equal(*group, "compare facts", facts_of(world.rank(), 0)));
    EXPECT_EQ(n_messages(world) - before, 2U);
  });
}

TEST(AgreementTest, ARankAloneAgreesWithItself) {
  const Group one{nullptr, {0}, 0};
  expect_facts_of(2, 50, agree(one, "op", facts_of(2, 50)).at(0));
  EXPECT_TRUE(have_equal(one, "compare facts", facts_of(2, 50)));
}

}  // namespace
}  // namespace shardwise::agreement_test
