#include "runtime/comm/world.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/given_groups.h"
#include "runtime/comm/group_backend.h"
#include "tests/support/ranks.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace shardwise::world_test {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return {};
}

TEST(WorldTest, WithoutRanksTheErrorSaysHowToStartThem) {
  EXPECT_EQ(World::maybe_current(), nullptr);
  const std::string error = error_of([] { World::current(); });
  for (const char* way : {"torchrun", "init_process_group", "init_from_env", "run_ranks"}) expect_error(way, error);
}

TEST(WorldTest, ThreadsWorldHidesTheProcesss) {
  const auto process = std::make_shared<World>(0, 1, nullptr, nullptr);
  World::set_process(process);
  EXPECT_EQ(World::current(), process);
  run_ranks(2, [&](World& world) { EXPECT_EQ(World::current().get(), &world); });
  EXPECT_EQ(World::current(), process);
  World::set_process(nullptr);
}

TEST(WorldTest, GroupIsAscendingWhateverTheOrderAskedFor) {
  run_ranks(3, [](World& world) {
    const GroupPtr group = world.group({2, 0, 1});
    EXPECT_EQ(group->ranks, (std::vector<int64_t>{0, 1, 2}));
    EXPECT_EQ(group->index, world.rank());
  });
}

TEST(WorldTest, GroupIsMadeOnce) {
  run_ranks(4, [](World& world) {
    const GroupPtr group = world.group({3, 1});
    EXPECT_EQ(group, world.group({1, 3}));
    EXPECT_EQ(group != nullptr, world.rank() % 2 == 1);
  });
}

TEST(WorldTest, GroupOfOneNeedsNoProcessGroup) {
  run_ranks(2, [](World& world) {
    const GroupPtr own = world.group({world.rank()});
    EXPECT_EQ(own->process_group, nullptr);
    EXPECT_EQ(own->size(), 1);
    EXPECT_EQ(world.group({1 - world.rank()}), nullptr);
  });
}

TEST(WorldTest, ClosedWorldsLetGoOfTheirGroupsAndSendNothing) {
  run_ranks(2, [](World& world) {
    const GroupPtr group = everyone(world);
    const at::Tensor ones = at::ones({2});
    all_reduce(*group, ones, Reduce::kSum);
    const auto process_group = group->process_group;
    EXPECT_GT(process_group.use_count(), 1);
    world.close();
    EXPECT_EQ(process_group.use_count(), 1);
    expect_error("[all_reduce] the process group of ranks [0, 1] was destroyed",
                 error_of([&] { all_reduce(*group, ones, Reduce::kSum); }));
    expect_error("[group] the process groups of these ranks were destroyed", error_of([&] { everyone(world); }));
  });
}

TEST(WorldTest, UnknownAndDuplicateRanksAreNamed) {
  World world(0, 1, nullptr, nullptr);
  expect_error("rank 3 of [0, 3] does not exist: the world has 1 ranks", error_of([&] { world.group({0, 3}); }));
  expect_error("rank -1 of [-1] does not exist", error_of([&] { world.group({-1}); }));
  expect_error("rank 0 occurs twice in [0, 0]", error_of([&] { world.group({0, 0}); }));
  expect_error("got no ranks", error_of([&] { world.group({}); }));
}

TEST(WorldTest, ImpossibleWorldsAreRefused) {
  expect_error("rank 2 does not fit a world of 2 ranks", error_of([] { World(2, 2, nullptr, nullptr); }));
  const auto make_none = [](const std::vector<int64_t>&) { return c10::intrusive_ptr<c10d::ProcessGroup>(); };
  expect_error("needs a process group", error_of([&] { World(0, 2, nullptr, make_none); }));
}

TEST(WorldTest, WithoutGroupsItKnowsItsRanksAndSendsNothing) {
  const auto world = world_without_groups(1, 4);
  EXPECT_EQ(world, world_without_groups(1, 4));
  EXPECT_NE(world, world_without_groups(2, 4));
  const GivenGroups absent(world);
  EXPECT_EQ(World::current(), world);
  EXPECT_EQ(world->group({0, 1})->index, 1);
  EXPECT_EQ(world->group({0, 2}), nullptr);
  expect_error("never made", error_of([&] { open_group(*world->group({0, 1, 2, 3}), "all_reduce"); }));
  expect_error("rank 4 does not fit", error_of([] { world_without_groups(4, 4); }));
}

TEST(WorldTest, ThreadsOfOneRankMakeOneGroup) {
  std::atomic<int> n_made = 0;
  const auto make = [&](const std::vector<int64_t>& ranks) {
    ++n_made;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return c10::make_intrusive<c10d::ProcessGroup>(0, static_cast<int>(ranks.size()));
  };
  World world(0, 3, c10::make_intrusive<c10d::ProcessGroup>(0, 3), make);
  std::vector<GroupPtr> groups(4);
  std::vector<std::thread> threads;
  for (GroupPtr& group : groups) threads.emplace_back([&] { group = world.group({0, 1}); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_made, 1);
  for (const GroupPtr& group : groups) EXPECT_EQ(group, groups[0]);
}

TEST(WorldTest, IndexOfNamesANonMember) {
  const Group group{nullptr, {1, 4, 6}, 0};
  EXPECT_EQ(group.index_of(4), 1);
  expect_error("rank 2 is not a member of the group of ranks [1, 4, 6]", error_of([&] { group.index_of(2); }));
}

}  // namespace
}  // namespace shardwise::world_test
