// On three threads, and on processes over Gloo when gloo_main.cpp starts them.
#include "runtime/comm/order_check.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/events.h"
#include "runtime/comm/messages.h"
#include "tests/support/either_world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace shardwise::order_check_test {
namespace {

struct Checked {
  explicit Checked(bool is_on) : was_on(set_order_check(is_on)) {}
  ~Checked() { set_order_check(was_on); }
  bool was_on;
};

void expect_same_error(const std::string& text, const std::function<void(World&)>& body) {
  const Checked checked(true);
  on_ranks([&](World& world) {
    EXPECT_EQ(error_of<c10::ValueError>([&] { body(world); }), text) << "on rank " << world.rank();
    all_gather_numbers(*everyone(world), {});  // and the group still works
  });
}

TEST(OrderCheckTest, DifferentCollectivesAreNamedOnAllRanks) {
  expect_same_error(
      "[check] rank 0 is about to all_reduce 16 elements for aten::mm (Float [4, 4] as [Partial(sum)] on (3)), rank 2 "
      "to "
      "all_to_all "
      "for redistribute (Long [3] as [Shard(0)] on (3)). Every rank must make the same calls in the same order.",
      [](World& world) {
        if (world.rank() == 2) {
          const auto layouts = [] { return std::string("Long [3] as [Shard(0)] on (3)"); };
          const CommScope scope("redistribute", CommScope::Cause::kProgram, layouts);
          all_to_all(*everyone(world), at::ones({3}, at::kLong), at::ones({3}, at::kLong), {1, 1, 1}, {1, 1, 1});
        } else {
          const auto layouts = [] { return std::string("Float [4, 4] as [Partial(sum)] on (3)"); };
          const CommScope scope("aten::mm", CommScope::Cause::kOperator, layouts);
          all_reduce(*everyone(world), at::ones({4, 4}), Reduce::kSum);
        }
      });
}

TEST(OrderCheckTest, OneCallWithDifferentLayoutsOrDtypesIsNamed) {
  expect_same_error(
      "[check] rank 0 is about to broadcast 2 elements for aten::add (Float [2] as [Shard(0)] on (3)), rank 1 to "
      "broadcast 2 elements for "
      "aten::add (Float [2] as [Replicate()] on (3)). Every rank must make the same calls in the same order.",
      [](World& world) {
        const auto layouts = [&] {
          return fmt::format("Float [2] as [{}] on (3)", world.rank() == 1 ? "Replicate()" : "Shard(0)");
        };
        const CommScope scope("aten::add", CommScope::Cause::kOperator, layouts);
        broadcast(*everyone(world), at::ones({2}), 0);
      });
  expect_same_error(
      "[check] rank 0 is about to broadcast 2 elements (Float), rank 1 to broadcast 2 elements (Int). Every rank must "
      "make the same calls in "
      "the "
      "same order.",
      [](World& world) { broadcast(*everyone(world), at::ones({2}, world.rank() == 1 ? at::kInt : at::kFloat), 0); });
}

TEST(OrderCheckTest, OneCallOfDifferentLengthsIsNamed) {
  expect_same_error(
      "[check] rank 0 is about to all_reduce 1 element (Float), rank 1 to all_reduce 2 elements (Float). Every rank "
      "must "
      "make the same calls in the same order.",
      [](World& world) { all_reduce(*everyone(world), at::ones({world.rank() == 1 ? 2 : 1}), Reduce::kSum); });
}

TEST(OrderCheckTest, MessagesAndNumbersAreComparedToo) {
  expect_same_error(
      "[check] rank 0 is about to exchange, rank 1 to all_gather 128 elements (Long). Every rank must make the same "
      "calls in the "
      "same "
      "order.",
      [](World& world) {
        const GroupPtr group = everyone(world);
        if (world.rank() == 1)
          all_gather_numbers(*group, {1});
        else
          exchange(*group, at::kCPU, {}, {});
      });
}

TEST(OrderCheckTest, LongLayoutsAreCutWhereShown) {
  const Checked checked(true);
  on_ranks([](World& world) {
    const auto layouts = [&] { return std::string(5000, 'x') + std::to_string(world.rank()); };
    const CommScope scope("aten::cat", CommScope::Cause::kOperator, layouts);
    expect_error("rank 0 is about to broadcast 2 elements for aten::cat (xxx",
                 error_of<c10::ValueError>([&] { broadcast(*everyone(world), at::ones({2}), 0); }));
  });
}

TEST(OrderCheckTest, SameCallsPassAndCountAsWithoutCheck) {
  const auto run = [](World& world) {
    const CommTrace trace;
    const GroupPtr group = everyone(world);
    const auto layouts = [] { return std::string("Float [2] as [Shard(0)] on (3)"); };
    const CommScope scope("redistribute", CommScope::Cause::kProgram, layouts);
    const at::Tensor tensor = at::ones({2});
    all_reduce(*group, tensor, Reduce::kSum);
    EXPECT_EQ(tensor[0].item<float>(), 3.F);
    broadcast(*group, tensor, 1);
    EXPECT_EQ(all_gather_numbers(*group, {world.rank()})[2][0], 2);
    const bool sends = world.rank() == 0;
    const bool receives = world.rank() == 2;
    exchange(*group, at::kCPU, sends ? std::vector<Message>{{2, tensor}} : std::vector<Message>{},
             receives ? std::vector<Message>{{0, tensor}} : std::vector<Message>{})
        ->wait();
    EXPECT_EQ(trace.total_count(), world.rank() == 1 ? 3 : 4);
  };
  for (const bool is_on : {false, true}) {
    const Checked checked(is_on);
    on_ranks(run);
  }
}

TEST(OrderCheckTest, SubgroupsCompareAmongThemselves) {
  const Checked checked(true);
  on_ranks([](World& world) {
    const GroupPtr pair = world.group({0, 2});
    if (pair) broadcast(*pair, at::ones({2}), 0);
    all_reduce(*everyone(world), at::ones({2}), Reduce::kSum);
  });
}

TEST(OrderCheckTest, OffUnlessAskedForAndLayoutsAreNotDescribed) {
  if (std::getenv("SHARDWISE_CHECK")) GTEST_SKIP() << "SHARDWISE_CHECK is set";
  on_ranks([](World& world) {
    const auto layouts = []() -> std::string { throw std::runtime_error("described"); };
    const CommScope scope("aten::mm", CommScope::Cause::kOperator, layouts);
    broadcast(*everyone(world), at::ones({2}), 0);
  });
  expect_error("[broadcast] rank 0 calls broadcast", error_of_ranks(2, [](World& world) {
                 if (world.rank() == 0)
                   broadcast(*everyone(world), at::ones({2}), 0);
                 else
                   all_reduce(*everyone(world), at::ones({2}), Reduce::kSum);
               }));
}

}  // namespace
}  // namespace shardwise::order_check_test
