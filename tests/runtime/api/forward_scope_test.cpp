#include "runtime/api/forward_scope.h"

#include "runtime/comm/events.h"
#include "runtime/comm/order_check.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardwise::forward_scope_test {
namespace {

constexpr int64_t kModule = 1, kInner = 2;

std::shared_ptr<ComparedCalls> calls_on(std::vector<MeshPtr> meshes) {
  return std::make_shared<ComparedCalls>(std::move(meshes));
}

/// What differs between the ranks of `mesh` in a forward of "Model" with these arguments.
std::string difference(const std::shared_ptr<ComparedCalls>& calls, const std::vector<ForwardArgument>& arguments,
                       const MeshPtr& mesh) {
  ForwardScope::open(kModule, "Model", calls, arguments);
  const auto leave = c10::make_scope_exit([] { ForwardScope::leave(kModule); });
  return ForwardScope::difference(*mesh);
}

ForwardArgument tensor(const char* path, const at::Tensor& value) { return {path, value, "", ""}; }
ForwardArgument number(const char* path, const char* text) { return {path, {}, "float", text}; }

TEST(ForwardScopeTest, CallsOfTheModuleThatOpenedItAreCounted) {
  EXPECT_FALSE(ForwardScope::join(kModule));
  ForwardScope::open(kModule, "Model", calls_on({}), {});
  EXPECT_TRUE(ForwardScope::join(kInner));
  ForwardScope::leave(kInner);
  EXPECT_TRUE(ForwardScope::join(kModule));
  ForwardScope::leave(kModule);
  EXPECT_TRUE(ForwardScope::is_open());
  std::thread([] { EXPECT_FALSE(ForwardScope::is_open()); }).join();
  ForwardScope::leave(kModule);
  EXPECT_FALSE(ForwardScope::is_open());
}

TEST(ForwardScopeTest, AScopeWhoseCallHasEndedIsClosed) {
  bool is_running = true;
  ForwardScope::open(kModule, "Model", calls_on({}), {}, [&] { return is_running; });
  EXPECT_TRUE(ForwardScope::is_open());
  EXPECT_TRUE(ForwardScope::join(kInner));
  is_running = false;
  EXPECT_FALSE(ForwardScope::is_open());
  is_running = true;
  EXPECT_FALSE(ForwardScope::join(kModule));
}

TEST(ForwardScopeTest, EqualArgumentsAreNoDifferenceAndCountedByNobody) {
  run_ranks(3, [](World&) {
    const MeshPtr mesh = make_mesh({3});
    const CommTrace trace;
    EXPECT_EQ(difference(calls_on({mesh}), {tensor("ids", at::arange(5)), number("rate", "0.5")}, mesh), "");
    EXPECT_EQ(trace.total_count(), 0);
  });
}

TEST(ForwardScopeTest, StridesAndAliasesAreNoDifference) {
  run_ranks(2, [](World& world) {
    const MeshPtr mesh = make_mesh({2});
    const at::Tensor whole = at::arange(6).view({2, 3});
    const at::Tensor ids = world.rank() == 0 ? whole : whole.t().contiguous().t();
    const at::Tensor row = world.rank() == 0 ? at::ones({1, 3}).expand({4, 3}) : at::ones({4, 3});
    EXPECT_EQ(difference(calls_on({mesh}), {tensor("ids", ids), tensor("row", row)}, mesh), "");
  });
}

TEST(ForwardScopeTest, TheFirstArgumentThatDiffersIsNamedOnAllRanks) {
  run_ranks(3, [](World& world) {
    const MeshPtr mesh = make_mesh({3});
    const auto error = [&](const std::vector<ForwardArgument>& arguments) {
      return difference(calls_on({mesh}), arguments, mesh);
    };
    const at::Tensor same = at::arange(5), own = at::arange(5).add(world.rank() == 2);
    expect_error("ranks 0 and 2 called Model with different mask. Give all ranks the same",
                 error({tensor("ids", same), tensor("mask", own)}));
    expect_error("ranks 0 and 2 called Model with different rate",
                 error({tensor("ids", same), number("rate", world.rank() == 2 ? "0.1" : "0.5")}));
    expect_error("ranks 0 and 1 called Model with different ids",
                 error({tensor("ids", same.to(world.rank() == 1 ? at::kInt : at::kLong))}));
    expect_error("ranks 0 and 1 called Model with different ids",
                 error({tensor("ids", world.rank() == 1 ? same.view({5, 1}) : same)}));
    std::vector<ForwardArgument> more{tensor("ids", same)};
    if (world.rank() == 1) more.push_back(more[0]);
    expect_error("ranks 0 and 1 called Model with different arguments", error(more));
  });
}

TEST(ForwardScopeTest, ASignatureIsComparedOnce) {
  if (checks_order()) GTEST_SKIP() << "SHARDWISE_CHECK=1 compares each call";
  run_ranks(2, [](World& world) {
    const MeshPtr mesh = make_mesh({2});
    const auto calls = calls_on({mesh});
    const auto error = [&](int64_t n, int64_t value) {
      return difference(calls, {tensor("ids", at::full({n}, value))}, mesh);
    };
    EXPECT_EQ(error(3, 7), "");
    EXPECT_EQ(error(3, world.rank()), "");  // other values of a known signature
    EXPECT_EQ(difference(calls_on({mesh}), {}, mesh), "");
    expect_error("different ids", error(4, world.rank()));
    EXPECT_EQ(error(4, 7), "");  // what was an error is compared again
    EXPECT_EQ(error(4, world.rank()), "");
    expect_error("different ids", difference(calls_on({mesh}), {tensor("ids", at::full({3}, world.rank()))}, mesh));
  });
}

TEST(ForwardScopeTest, ArgumentsThatDifferWithoutAnErrorAreComparedOnce) {
  if (checks_order()) GTEST_SKIP() << "SHARDWISE_CHECK=1 compares each call";
  run_ranks(2, [](World& world) {
    const auto calls = calls_on({make_mesh({2})});
    const std::vector<ForwardArgument> own{tensor("x", at::full({3}, world.rank()))};
    EXPECT_EQ(calls->differences("Model", own).size(), 1U);
    if (world.rank() == 0) {  // sends nothing, so that rank 0 may be alone
      EXPECT_EQ(calls->differences("Model", own).size(), 1U);
    }
  });
}

TEST(ForwardScopeTest, UnderTheOrderCheckEachCallIsCompared) {
  const bool was_on = set_order_check(true);
  const auto restore = c10::make_scope_exit([&] { set_order_check(was_on); });
  run_ranks(2, [](World& world) {
    const MeshPtr mesh = make_mesh({2});
    const auto calls = calls_on({mesh});
    EXPECT_EQ(difference(calls, {tensor("ids", at::ones({3}))}, mesh), "");
    expect_error("different ids",
                 difference(calls, {tensor("ids", at::full({3}, static_cast<float>(world.rank())))}, mesh));
  });
}

TEST(ForwardScopeTest, RanksOfEachMeshCompare) {
  run_ranks(4, [](World& world) {
    const MeshPtr grid = DeviceMesh::create(World::current(), c10::kCPU, {{2, 2}, {0, 1, 2, 3}}, {"dp", "tp"});
    const MeshPtr tp = grid->submesh({"tp"});
    const std::vector<ForwardArgument> part{tensor("x", at::full({2}, world.rank() / 2))};  // a batch per tp mesh
    EXPECT_EQ(difference(calls_on({tp}), part, tp), "");
    EXPECT_EQ(difference(calls_on({tp}), part, grid), "");  // nobody compared these
    expect_error("ranks 0 and 2 called Model with different x", difference(calls_on({grid}), part, tp));
  });
}

TEST(ForwardScopeTest, ARunWithoutValuesComparesNothing) {
  run_ranks(2, [](World& world) {
    const MeshPtr mesh = make_mesh({2});
    const auto calls = calls_on({mesh});
    const std::vector<ForwardArgument> on_meta{tensor("x", at::ones({2}, at::TensorOptions(at::kMeta)))};
    if (world.rank() == 0) {
      EXPECT_EQ(difference(calls, on_meta, mesh), "");
    }
    expect_error("different x",
                 difference(calls, {tensor("x", at::full({2}, static_cast<float>(world.rank())))}, mesh));
    const auto planned = calls_on({mesh->on_meta()});  // of a module that gets values later
    if (world.rank() == 0) {
      EXPECT_EQ(difference(planned, {number("rate", "0.5")}, mesh), "");
    }
    expect_error("different x", difference(planned, {tensor("x", at::full({2}, world.rank()))}, mesh));
  });
}

}  // namespace
}  // namespace shardwise::forward_scope_test
