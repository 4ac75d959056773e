#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/plain_operand.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/dispatch/decision.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

namespace shardwise {
namespace {

const Placement kRows = Placement::shard(0);

TEST(DispatchTest, TheSecondCallIsAHit) {
  run_ranks(2, [](World&) {
    const at::Tensor x = lay_out(at::ones({5, 3}), make_mesh({2}), {kRows});
    at::add(x, x);
    const auto before = DecisionCache::of_thread().counters();
    at::add(x, x);
    at::add(x, x, 7);  // a Scalar's value decides nothing
    const auto after = DecisionCache::of_thread().counters();
    EXPECT_EQ(after.hits, before.hits + 2);
    EXPECT_EQ(after.misses, before.misses);
  });
}

TEST(DispatchTest, OtherScalarTypesDtypesAndLayoutsAreOtherDecisions) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor ints = lay_out(at::ones({5, 3}, at::kLong), mesh, {kRows});
    EXPECT_EQ(at::mul(ints, 2).scalar_type(), at::kLong);
    EXPECT_EQ(at::mul(ints, 0.5).scalar_type(), at::kFloat);
    const at::Tensor columns = lay_out(at::ones({5, 3}, at::kLong), mesh, {Placement::shard(1)});
    EXPECT_TRUE(spec_of(at::mul(columns, 2))->placements()[0].is_shard(1));
  });
}

TEST(DispatchTest, OperatorsWithoutARuleGiveTheDenseAnswerReplicated) {
  run_ranks(3, [](World&) {
    const at::Tensor dense = at::arange(12, at::kDouble).reshape({4, 3});
    const at::Tensor x = lay_out(dense, make_mesh({3}), {kRows});
    CommTrace trace;
    EXPECT_TRUE(at::equal(full_tensor(at::cumsum(x, 0)), at::cumsum(dense, 0)));
    EXPECT_TRUE(at::equal(full_tensor(std::get<1>(at::sort(x, 0, true))), std::get<1>(at::sort(dense, 0, true))));
    EXPECT_TRUE(at::equal(full_tensor(at::nonzero(x)), at::nonzero(dense)));
    EXPECT_EQ(x.sum().item<double>(), dense.sum().item<double>());
    EXPECT_GT(trace.total_count(), 0);
  });
}

TEST(DispatchTest, InPlaceWithoutARuleKeepsTheLayout) {
  run_ranks(3, [](World&) {
    const at::Tensor dense = at::arange(12, at::kDouble).reshape({4, 3});
    for (const Placement& placement :
         {kRows, Placement::shard(1, {0, 3, 0}), Placement::replicate(), Placement::partial()}) {
      const at::Tensor x = lay_out(dense.clone(), make_mesh({3}), {placement});
      const auto spec = spec_of(x);
      x.cumsum_(0);
      EXPECT_EQ(spec_of(x), spec);
      EXPECT_TRUE(at::equal(full_tensor(x), at::cumsum(dense, 0)));
    }
  });
}

TEST(DispatchTest, PlainTensorsNextToDistributedOnesAreRefusedUnlessTheyAreScalars) {
  run_ranks(2, [](World&) {
    const at::Tensor x = lay_out(at::ones({5, 3}), make_mesh({2}), {kRows});
    try {
      at::mul(x, at::ones({5, 3}));
      FAIL();
    } catch (const c10::ValueError& error) {
      expect_error("[aten::mul.Tensor] got a torch.Tensor of shape [5, 3] next to a DTensor",
                   error.what_without_backtrace());
    }
    EXPECT_TRUE(at::equal(full_tensor(at::mul(x, at::scalar_tensor(3))), at::full({5, 3}, 3.0)));
    ImplicitReplication on;
    EXPECT_TRUE(at::equal(full_tensor(at::mul(x, at::full({5, 3}, 2.0))), at::full({5, 3}, 2.0)));
  });
}

TEST(DispatchTest, ShapeErrorsAreTheDenseOnesOnEveryRankBeforeAnyMessage) {
  run_ranks(2, [](World&) {
    const at::Tensor x = lay_out(at::ones({5, 3}), make_mesh({2}), {kRows});
    CommTrace trace;
    EXPECT_THROW(at::mm(x, x), c10::Error);
    EXPECT_THROW(at::add(x, lay_out(at::ones({4, 3}), make_mesh({2}), {kRows})), c10::Error);
    EXPECT_EQ(trace.total_count(), 0);
  });
}

/// An operator of another library, which has no rule.
at::Tensor doubled(const at::Tensor& x) {
  static auto* library = [] {
    auto* made = new torch::Library(torch::Library::DEF, "dispatch_test", std::nullopt, __FILE__, __LINE__);
    made->def("doubled(Tensor x) -> Tensor");
    made->impl("doubled", torch::dispatch(c10::DispatchKey::CPU, [](const at::Tensor& t) { return at::mul(t, 2); }));
    made->impl("doubled",
               torch::dispatch(c10::DispatchKey::Meta, [](const at::Tensor& t) { return at::empty_like(t); }));
    return made;
  }();
  (void)library;
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow("dispatch_test::doubled", "").callBoxed(&stack);
  return stack[0].toTensor();
}

TEST(DispatchTest, NonMembersComputeShapesOnly) {
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({2}, {0, 2});
    const at::Tensor x = lay_out(at::ones({5, 3}), mesh, {kRows});
    const at::Tensor y = doubled(at::add(x, x));  // no rule: gathered
    EXPECT_EQ(y.sizes(), c10::IntArrayRef({5, 3}));
    EXPECT_EQ(to_local(y).numel(), world.rank() == 1 ? 0 : 15);
  });
}

TEST(DispatchTest, AWriteToAViewWhoseValuesMovedReachesItsBase) {
  run_ranks(2, [](World&) {
    const at::Tensor x = lay_out(at::ones({4, 3}), make_mesh({2}), {Placement::shard(1)});
    at::Tensor view = x.view({12});  // of columns there is none where they are
    view.add_(1);
    EXPECT_TRUE(at::equal(full_tensor(x), at::full({4, 3}, 2.0)));
    EXPECT_EQ(spec_of(x)->placements()[0], Placement::shard(1));
  });
}

TEST(DispatchTest, TheCacheIsBounded) {
  run_ranks(1, [](World&) {
    const at::Tensor x = lay_out(at::ones({2}), make_mesh({1}), {kRows});
    auto& cache = DecisionCache::of_thread();
    for (int64_t n = 0; n < static_cast<int64_t>(DecisionCache::kMaxDecisions) + 10; ++n) {
      DecisionKey key;
      key.add(static_cast<uint64_t>(n));
      cache.insert(key, std::make_shared<const Decision>(), {});
    }
    EXPECT_LE(cache.counters().size, static_cast<int64_t>(DecisionCache::kMaxDecisions));
    EXPECT_TRUE(at::equal(full_tensor(at::add(x, x)), at::full({2}, 2.0)));
  });
}

}  // namespace
}  // namespace shardwise
