#include "runtime/api/forward_scope.h"

#include "runtime/comm/comm_trace.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardwise::forward_scope_test {
namespace {

constexpr int64_t kModule = 1, kInner = 2;

/// Calls `body` in a forward of "Model" with these arguments.
template <class Body>
auto within(std::vector<ForwardArgument> arguments, const Body& body) {
  ForwardScope::open(kModule, "Model", std::move(arguments));
  const auto leave = c10::make_scope_exit([] { ForwardScope::leave(kModule); });
  return body();
}

TEST(ForwardScopeTest, CallsOfTheModuleThatOpenedItAreCounted) {
  EXPECT_FALSE(ForwardScope::join(kModule));
  ForwardScope::open(kModule, "Model", {});
  EXPECT_TRUE(ForwardScope::join(kInner));
  ForwardScope::leave(kInner);
  EXPECT_TRUE(ForwardScope::join(kModule));
  ForwardScope::leave(kModule);
  EXPECT_TRUE(ForwardScope::is_open());
  std::thread([] { EXPECT_FALSE(ForwardScope::is_open()); }).join();
  {
    const OutsideForward outside;
    EXPECT_FALSE(ForwardScope::is_open());
  }
  ForwardScope::leave(kModule);
  EXPECT_FALSE(ForwardScope::is_open());
}

TEST(ForwardScopeTest, AScopeWhoseCallHasEndedIsClosed) {
  bool is_running = true;
  ForwardScope::open(kModule, "Model", {}, [&] { return is_running; });
  EXPECT_TRUE(ForwardScope::is_open());
  EXPECT_TRUE(ForwardScope::join(kInner));
  is_running = false;
  EXPECT_FALSE(ForwardScope::is_open());
  is_running = true;
  EXPECT_FALSE(ForwardScope::join(kModule));
}

TEST(ForwardScopeTest, AGradientOfAPartIsNoReplica) {
  run_ranks(2, [](World&) {
    const MeshPtr mesh = make_mesh({2});
    const auto objection_after = [&](Placement placement) {
      return within({}, [&] {
        ForwardScope::give_out_gradient(*Spec::intern(mesh, {4}, {placement}, {1}, at::kFloat));
        return ForwardScope::objection(mesh);
      });
    };
    EXPECT_EQ(objection_after(Placement::replicate()), "");
    expect_error("within Model a rank's part of a gradient placed as [Shard(0)] was taken before",
                 objection_after(Placement::shard(0)));
  });
}

TEST(ForwardScopeTest, EqualArgumentsAreNoObjectionAndCountedByNobody) {
  run_ranks(3, [](World&) {
    const CommTrace trace;
    const std::string objection = within({{"ids", at::arange(5), ""}, {"rate", {}, "0.5"}},
                                         [] { return ForwardScope::objection(make_mesh({3})); });
    EXPECT_EQ(objection, "");
    EXPECT_EQ(trace.total_count(), 0);
  });
}

TEST(ForwardScopeTest, StridesAndAliasesAreNoDifference) {
  run_ranks(2, [](World& world) {
    const at::Tensor whole = at::arange(6).view({2, 3});
    const at::Tensor ids = world.rank() == 0 ? whole : whole.t().contiguous().t();
    const at::Tensor row = world.rank() == 0 ? at::ones({1, 3}).expand({4, 3}) : at::ones({4, 3});
    EXPECT_EQ(within({{"ids", ids, ""}, {"row", row, ""}}, [] { return ForwardScope::objection(make_mesh({2})); }), "");
  });
}

TEST(ForwardScopeTest, TheFirstArgumentThatDiffersIsNamedOnAllRanks) {
  run_ranks(3, [](World& world) {
    const auto objection_to = [](std::vector<ForwardArgument> arguments) {
      return within(std::move(arguments), [] { return ForwardScope::objection(make_mesh({3})); });
    };
    const at::Tensor same = at::arange(5), own = at::arange(5).add(world.rank() == 2);
    expect_error("ranks 0 and 2 called Model with different mask. Give all ranks the same",
                 objection_to({{"ids", same, ""}, {"mask", own, ""}}));
    expect_error("ranks 0 and 2 called Model with different rate",
                 objection_to({{"ids", same, ""}, {"rate", {}, world.rank() == 2 ? "0.1" : "0.5"}}));
    expect_error("ranks 0 and 1 called Model with different ids",
                 objection_to({{"ids", same.to(world.rank() == 1 ? at::kInt : at::kLong), ""}}));
    expect_error("ranks 0 and 1 called Model with different ids",
                 objection_to({{"ids", world.rank() == 1 ? same.view({5, 1}) : same, ""}}));
    std::vector<ForwardArgument> more{{"ids", same, ""}};
    if (world.rank() == 1) more.push_back(more[0]);
    expect_error("ranks 0 and 1 called Model with different arguments", objection_to(more));
    expect_error("Model was called with ids, whose values cannot be compared",
                 objection_to({{"ids", at::empty({2}, at::TensorOptions(at::kMeta)), ""}}));
  });
}

TEST(ForwardScopeTest, AWaitForRanksWithoutArgumentsIsAnErrorThatSaysSo) {
  const std::string error = error_of_ranks(
      2,
      [](World& world) {
        std::vector<ForwardArgument> arguments;
        if (world.rank() == 0) arguments.push_back({"ids", at::arange(5), ""});
        within(std::move(arguments), [] { return ForwardScope::objection(make_mesh({2})); });
      },
      std::chrono::seconds(2));
  expect_error("while the ranks compared the plain arguments of Model: a rank that was called without any", error);
}

TEST(ForwardScopeTest, APartThatIsGivenOutIsAnObjection) {
  run_ranks(2, [](World&) {
    const at::Tensor replica = lay_out(at::ones({4}), make_mesh({2}), {Placement::replicate()});
    const at::Tensor part = lay_out(at::ones({4}), make_mesh({2}), {Placement::shard(0)});
    within({}, [&] {
      ForwardScope::give_out(*spec_of(replica));
      EXPECT_EQ(ForwardScope::objection(make_mesh({2})), "");
      ForwardScope::give_out(*spec_of(part));
      expect_error("within Model a rank's part of a tensor placed as [Shard(0)] was taken before",
                   ForwardScope::objection(make_mesh({2})));
      EXPECT_EQ(ForwardScope::difference(make_mesh({2})), "");
    });
    within({}, [] { EXPECT_EQ(ForwardScope::objection(make_mesh({2})), ""); });
    ForwardScope::give_out(*spec_of(part));  // outside of any
    EXPECT_FALSE(ForwardScope::is_open());
  });
}

}  // namespace
}  // namespace shardwise::forward_scope_test
