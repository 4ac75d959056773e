#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/plain_operand.h"

#include "runtime/comm/events.h"
#include "runtime/dispatch/decision.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/library.h>

namespace shardwise::dispatch_test {
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

at::Tensor gate(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) { return x * y.sigmoid() + z; }

TORCH_LIBRARY(dispatch_test, library) {
  library.def("gate(Tensor x, Tensor y, Tensor z) -> Tensor");
  library.impl("gate", c10::DispatchKey::CPU, TORCH_FN(gate));
  library.def("doubled(Tensor x) -> Tensor");
  library.impl("doubled", torch::dispatch(c10::DispatchKey::CPU, [](const at::Tensor& x) { return at::mul(x, 2); }));
  library.impl("doubled",
               torch::dispatch(c10::DispatchKey::Meta, [](const at::Tensor& x) { return at::empty_like(x); }));
}

TEST(DispatchTest, OperatorsOfOtherLibrariesTakeARule) {
  add_user_rule("dispatch_test::gate", pointwise());
  EXPECT_THROW(add_user_rule("dispatch_test::gate", pointwise()), c10::ValueError);
  run_ranks(3, [](World&) {
    const at::Tensor dense = at::arange(12, at::kDouble).reshape({4, 3}), row = at::arange(3, at::kDouble);
    const auto mesh = make_mesh({3});
    const at::Tensor x = lay_out(dense, mesh, {kRows}), z = lay_out(row, mesh, {Placement::replicate()});
    const auto call = c10::Dispatcher::singleton().findSchemaOrThrow("dispatch_test::gate", "").typed<decltype(gate)>();
    CommTrace trace;
    const at::Tensor result = call.call(x, x, z);
    EXPECT_EQ(trace.total_count(), 0);
    EXPECT_TRUE(spec_of(result)->placements()[0].is_shard(0));
    EXPECT_TRUE(at::equal(full_tensor(result), gate(dense, dense, row)));
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

/// An operator of another library without a rule.
at::Tensor doubled(const at::Tensor& x) {
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

/// Fills the cache again and again with decisions that give `output`.
void overflow(DecisionCache& cache, const SpecPtr& output) {
  static const OpInfo op(*find_operator("aten::neg"));
  for (size_t n = 0; n < 3 * DecisionCache::kMaxDecisions; ++n) {
    DecisionKey key(op);
    key.add_scalar(static_cast<int64_t>(n), /*by_kind=*/false);
    Decision decision;
    decision.propagation.emplace().outputs.push_back(output);
    cache.insert(key, std::make_shared<const Decision>(decision), {});
  }
}

TEST(DispatchTest, TheCacheIsBounded) {
  run_ranks(1, [](World&) {
    const at::Tensor x = lay_out(at::ones({2}), make_mesh({1}), {kRows});
    auto& cache = DecisionCache::of_thread();
    overflow(cache, spec_of(x));
    EXPECT_LE(cache.counters().size, static_cast<int64_t>(DecisionCache::kMaxDecisions));
    EXPECT_TRUE(at::equal(full_tensor(at::add(x, x)), at::full({2}, 2.0)));
  });
}

TEST(DispatchTest, AKernelMayEmptyTheCache) {
  run_ranks(1, [](World&) {
    const at::Tensor x = lay_out(at::ones({2, 3}), make_mesh({1}), {kRows});
    at::mul(x, x);
    static SpecPtr other;
    other = spec_of(lay_out(at::ones({5}), make_mesh({1}), {kRows}));
    static bool emptied;
    emptied = false;
    const auto on_call = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
      const auto inputs = call.inputs();
      if (!emptied && !inputs.empty() && inputs[0].isTensor() && !is_dtensor(inputs[0].toTensor())) {
        emptied = true;
        overflow(DecisionCache::of_thread(), other);
      }
      return nullptr;
    };
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    const at::Tensor product = at::mul(x, x);
    at::removeCallback(handle);
    other.reset();
    EXPECT_TRUE(emptied);
    EXPECT_EQ(spec_of(product), spec_of(x));
    EXPECT_TRUE(at::equal(full_tensor(product), at::ones({2, 3})));
  });
}

TEST(DispatchTest, NumbersFollowTheOthersToTheirMesh) {
  run_ranks(4, [](World& world) {
    const auto here = make_mesh({2}, {0, 1}), there = make_mesh({2}, {3, 2});
    const at::Tensor x = lay_out(at::arange(5, at::kDouble), here, {kRows});
    const at::Tensor number = lay_out(at::scalar_tensor(3.0, at::kDouble), there, {Placement::replicate()});
    for (const at::Tensor& product : {at::mul(x, number), at::mul(number, x)}) {
      EXPECT_EQ(spec_of(product), spec_of(x));
      const at::Tensor whole = full_tensor(product);
      EXPECT_TRUE(world.rank() > 1 || at::equal(whole, at::arange(5, at::kDouble) * 3));
    }
    const at::Tensor total = at::stack({x.sum(), number}).sum();
    EXPECT_TRUE(world.rank() > 1 || full_tensor(total).item<double>() == 13);
    at::Tensor written = lay_out(at::ones({}, at::kDouble), there, {Placement::replicate()});
    EXPECT_THROW(written.add_(x), c10::Error);
  });
}

TEST(DispatchTest, ListsAreAnsweredMeshByMesh) {
  run_ranks(4, [](World&) {
    const auto a = make_mesh({2}, {0, 1}), b = make_mesh({2}, {3, 2}), all = make_mesh({4});
    const at::Tensor dense = at::arange(6, at::kDouble);
    const auto placed = [&](const MeshPtr& mesh) { return lay_out(dense.clone(), mesh, {kRows}); };
    std::vector<at::Tensor> list = {placed(a), placed(b), placed(all), placed(a)};
    at::_foreach_add_(list, list, 2);
    at::_foreach_mul_(list, std::vector<at::Scalar>{1, 2, 3, 4});
    at::_foreach_mul_(list, lay_out(at::scalar_tensor(0.5, at::kDouble), a, {Placement::replicate()}));
    const std::vector<at::Tensor> sums = at::_foreach_add(list, 1);
    for (size_t i = 0; i < list.size(); ++i) {
      EXPECT_EQ(spec_of(list[i])->mesh(), spec_of(sums[i])->mesh());
      const at::Tensor expected = dense * 3 * (static_cast<double>(i) + 1) * 0.5;
      const at::Tensor found = full_tensor(list[i]), sum = full_tensor(sums[i]);
      if (!spec_of(list[i])->is_member()) continue;
      EXPECT_TRUE(at::equal(found, expected)) << i;
      EXPECT_TRUE(at::equal(sum, expected + 1)) << i;
    }
  });
}

}  // namespace
}  // namespace shardwise::dispatch_test
