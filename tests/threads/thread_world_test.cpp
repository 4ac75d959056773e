#include "threads/thread_world.h"

#include "runtime/comm/collectives.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace shardwise::thread_world_test {
namespace {

void reduce_ones(World& world, int64_t n_elements = 1) {
  all_reduce(*everyone(world), at::ones({n_elements}), Reduce::kSum);
}

TEST(RunRanksTest, EachRankSeesItsOwnWorld) {
  const auto seen = on_each_rank(3, [](World&) { return World::current()->rank() * 10 + World::current()->size(); });
  EXPECT_EQ(seen, (std::vector<int64_t>{3, 13, 23}));
}

TEST(RunRanksTest, OneRankNeedsNoOthers) {
  run_ranks(1, [](World& world) { reduce_ones(world); });
}

TEST(RunRanksTest, NoRanksIsAnError) {
  EXPECT_THROW(run_ranks(0, [](World&) {}), c10::ValueError);
}

TEST(RunRanksTest, FailingRankReleasesThoseWhoWait) {
  const auto body = [](World& world) {
    if (world.rank() == 2) TORCH_CHECK_INDEX(false, "no row 7");
    reduce_ones(world);
  };
  try {
    run_ranks(3, body);
    FAIL();
  } catch (const c10::IndexError& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "rank 2: no row 7");
  }
}

TEST(RunRanksTest, FailingRankReleasesThoseWhoComeLater) {
  std::string seen;
  const auto body = [&](World& world) {
    if (world.rank() == 1) throw std::runtime_error("broken");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    try {
      reduce_ones(world);
    } catch (const c10::DistBackendError& error) {
      seen = error.what_without_backtrace();
    }
  };
  EXPECT_THROW(run_ranks(2, body), c10::Error);
  EXPECT_EQ(seen, "[all_reduce] rank 0 was waiting, but rank 1 failed: broken");
}

TEST(RunRanksTest, FailureInOneGroupReleasesTheOthers) {
  const auto body = [](World& world) {
    if (world.rank() == 0) TORCH_CHECK_TYPE(false, "wrong type");
    if (world.rank() == 1) all_reduce(*world.group({0, 1}), at::ones({1}), Reduce::kSum);
    if (world.rank() == 2) all_reduce(*world.group({1, 2}), at::ones({1}), Reduce::kSum);
    if (world.rank() == 3) all_reduce(*world.group({2, 3}), at::ones({1}), Reduce::kSum);
  };
  EXPECT_THROW(run_ranks(4, body), c10::TypeError);
}

TEST(RunRanksTest, EachTypeOfErrorKeepsItsType) {
  EXPECT_THROW(run_ranks(2, [](World&) { TORCH_CHECK_VALUE(false, ""); }), c10::ValueError);
  EXPECT_THROW(run_ranks(2, [](World&) { TORCH_CHECK_TYPE(false, ""); }), c10::TypeError);
  EXPECT_THROW(run_ranks(2, [](World&) { TORCH_CHECK_NOT_IMPLEMENTED(false, ""); }), c10::NotImplementedError);
  EXPECT_THROW(run_ranks(2, [](World&) { throw 7; }), c10::Error);
}

TEST(RunRanksTest, EarlyFinisherIsNamed) {
  const auto body = [](World& world) {
    if (world.rank() != 1) reduce_ones(world);
  };
  expect_error("rank 1 has finished and cannot take part", error_of_ranks(3, body));
}

TEST(RunRanksTest, LateRankRunsIntoTheTimeOut) {
  const auto body = [](World& world) {
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    reduce_ones(world);
  };
  expect_error("ranks [0] did not come within 50 ms", error_of_ranks(2, body, std::chrono::milliseconds(50)));
}

TEST(RunRanksTest, DifferingCollectivesAreNamed) {
  const auto body = [](World& world) {
    if (world.rank() == 0)
      reduce_ones(world, 6);
    else
      broadcast(*everyone(world), at::ones({3}), 0);
  };
  expect_error("rank 0 calls all_reduce (sum of 6 Float), but rank 1 calls broadcast (12 Byte from 0)",
               error_of_ranks(2, body));
}

TEST(RunRanksTest, DifferingSizesAreNamed) {
  const auto body = [](World& world) { reduce_ones(world, 4 + world.rank()); };
  expect_error("rank 0 calls all_reduce (sum of 4 Float), but rank 1 calls all_reduce (sum of 5 Float)",
               error_of_ranks(2, body));
}

TEST(RunRanksTest, DifferingSplitsAreNamed) {
  const auto body = [](World& world) {
    const std::vector<int64_t> sends{2, 2};
    const std::vector<int64_t> receives{2, world.rank() == 0 ? 3 : 2};
    all_to_all(*everyone(world), at::zeros({receives[0] + receives[1]}, at::kByte), at::ones({4}, at::kByte), receives,
               sends);
  };
  expect_error("member 1 sends 2 elements to member 0, which expects 3", error_of_ranks(2, body));
}

TEST(RunRanksTest, GoesOnAfterAnErrorThatEveryRankCaught) {
  run_ranks(2, [](World& world) {
    EXPECT_THROW(reduce_ones(world, 1 + world.rank()), c10::ValueError);
    reduce_ones(world, 5);
  });
}

TEST(RunRanksTest, SubgroupsOverlapInAnyOrder) {
  run_ranks(4, [](World& world) {
    for (const auto& ranks :
         std::vector<std::vector<int64_t>>{{3, 0}, {1, 2, 3}, {2, 0}, {0, 1, 2, 3}, {1, 0}, {3, 0}}) {
      const GroupPtr group = world.group(ranks);
      if (!group) continue;
      const at::Tensor sum = at::full({2}, world.rank(), at::kLong);
      all_reduce(*group, sum, Reduce::kSum);
      EXPECT_EQ(sum[0].item<int64_t>(), std::accumulate(ranks.begin(), ranks.end(), int64_t{0}));
    }
  });
}

TEST(RunRanksTest, ProgramsMayRunSideBySide) {
  std::thread other([] {
    for (int i = 0; i < 20; ++i) run_ranks(3, [](World& world) { reduce_ones(world); });
  });
  for (int i = 0; i < 20; ++i) run_ranks(2, [](World& world) { reduce_ones(world, 2); });
  other.join();
}

TEST(ThreadHubTest, CallersThreadsTakePart) {
  ThreadHub hub(2);
  EXPECT_EQ(hub.world(1), hub.world(1));
  try {
    hub.world(2);
    ADD_FAILURE() << "a third world of two";
  } catch (const c10::ValueError& error) {
    expect_error("[run_ranks] rank 2 does not exist: there are 2", error.what_without_backtrace());
  }
  std::thread other([&] {
    reduce_ones(*hub.world(1));
    hub.finish(1);
  });
  reduce_ones(*hub.world(0));
  other.join();
  EXPECT_THROW(reduce_ones(*hub.world(0)), c10::DistBackendError);
  EXPECT_TRUE(hub.abort(0, "first"));
  EXPECT_FALSE(hub.abort(1, "second"));
}

}  // namespace
}  // namespace shardwise::thread_world_test
