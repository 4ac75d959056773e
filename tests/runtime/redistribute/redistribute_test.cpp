#include "runtime/api/dtensor.h"

#include "runtime/comm/events.h"
#include "runtime/comm/order_check.h"
#include "runtime/redistribute/execute.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"
#include "tests/support/strict_threads.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace shardwise::redistribute_test {
namespace {

/// Bytes of the destination boxes that `rank` does not hold already.
int64_t bound(const Layout& source, const Layout& destination, int64_t rank, int64_t element_bytes) {
  int64_t bytes = 0;
  for (const Box& wanted : destination.boxes(rank)) {
    int64_t n_missing = wanted.numel();  // the boxes that a rank holds are disjoint
    for (const Box& held : source.boxes(rank)) n_missing -= intersect(wanted, held).numel();
    bytes += n_missing * element_bytes;
  }
  return bytes;
}

bool has_partial(const Placements& placements) { return std::ranges::any_of(placements, &Placement::is_partial); }

Placements without_partial(Placements placements) {
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = Placement::replicate();
  return placements;
}

TEST(RedistributeTest, AnyLayoutBecomesAnyOtherBitForBitAndWithoutPartialAtTheByteMinimum) {
  constexpr unsigned kSeed = 7;
  for (const Dims& shape : {Dims{1}, Dims{3}, Dims{2, 2}, Dims{3, 2}, Dims{2, 2, 2}}) {
    int64_t n_ranks = 1;
    for (int64_t extent : shape) n_ranks *= extent;
    run_ranks(n_ranks + 1, [&](World& world) {  // the last rank is no member
      std::mt19937 random(kSeed);
      std::vector<int64_t> ranks(n_ranks);
      std::iota(ranks.begin(), ranks.end(), 0);
      for (int i = 0; i < 300; ++i) {
        std::shuffle(ranks.begin(), ranks.end(), random);
        auto mesh = make_mesh(shape, ranks);
        Dims sizes;
        for (auto n = random() % 4; n > 0; --n) sizes.push_back(static_cast<int64_t>(random() % 8));
        const auto from = random_placements(sizes, mesh->grid(), random);
        const auto to = random_placements(sizes, mesh->grid(), random);
        SCOPED_TRACE(fmt::format("[{}] {} -> {} on {}", fmt::join(sizes, ", "), to_string(from), to_string(to),
                                 to_string(*mesh)));
        int64_t numel = 1;
        for (int64_t size : sizes) numel *= size;
        const at::Tensor dense = at::arange(1, numel + 1, at::kDouble).reshape(sizes);
        const at::Tensor source = lay_out(dense, mesh, from);
        at::Tensor moved;
        CommTrace trace;
        moved = redistribute(source, to);
        if (!has_partial(from)) {
          const Layout destination(sizes, mesh->grid_ptr(), without_partial(to));
          EXPECT_EQ(trace.bytes_received(), bound(spec_of(source)->layout(), destination, world.rank(), 8));
        }
        const at::Tensor whole = full_tensor(moved);
        if (mesh->is_member())
          EXPECT_TRUE(at::equal(whole, dense)) << whole << dense;
        else
          EXPECT_EQ(whole.numel(), 0);
        EXPECT_EQ(moved.sizes(), dense.sizes());
      }
    });
  }
}

/// `ranks` in random order, the first product(shape) of them.
MeshPtr random_mesh(int64_t n_ranks, std::mt19937& random) {
  static const std::vector<Dims> shapes{{1}, {2}, {3}, {4}, {2, 2}, {2, 1, 2}};
  const Dims& shape = shapes[random() % shapes.size()];
  std::vector<int64_t> ranks(n_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  ranks.resize(size);
  return make_mesh(shape, std::move(ranks));
}

TEST(RedistributeTest, AnyMeshBecomesAnyOther) {
  constexpr unsigned kSeed = 3;
  run_ranks(5, [&](World& world) {
    std::mt19937 random(kSeed);
    constexpr at::ScalarType kDtypes[] = {at::kLong, at::kFloat, at::kHalf, at::kInt, at::kShort, at::kBFloat16};
    for (int i = 0; i < 600; ++i) {
      const auto first = random_mesh(5, random), second = random_mesh(5, random);
      const Dims sizes{static_cast<int64_t>(random() % 8), static_cast<int64_t>(random() % 8)};
      const auto from = random_placements(sizes, first->grid(), random);
      const auto to = random_placements(sizes, second->grid(), random);
      SCOPED_TRACE(fmt::format("seed {}, case {}: [{}] {} on {} -> {} on {}", kSeed, i, fmt::join(sizes, ", "),
                               to_string(from), to_string(*first), to_string(to), to_string(*second)));
      const auto dtype = kDtypes[i % std::size(kDtypes)];
      const at::Tensor dense = at::arange(1, sizes[0] * sizes[1] + 1, at::kLong).reshape(sizes).to(dtype);
      const at::Tensor source = lay_out(dense, first, from);
      const CommTrace trace;
      const at::Tensor moved = redistribute(source, second, to);
      if (!has_partial(from)) {
        const Layout destination(sizes, second->grid_ptr(), without_partial(to));
        EXPECT_EQ(trace.bytes_received(),
                  bound(spec_of(source)->layout(), destination, world.rank(), dense.element_size()));
      }
      const at::Tensor whole = full_tensor(moved);
      EXPECT_TRUE(second->is_member() ? at::equal(whole, dense) : whole.numel() == 0);
      EXPECT_EQ(spec_of(moved)->mesh(), second);
      const at::Tensor back = full_tensor(redistribute(moved, first, from));
      EXPECT_TRUE(first->is_member() ? at::equal(back, dense) : back.numel() == 0);
    }
  });
}

TEST(RedistributeTest, OptionsChangeTheWayAndNotTheValues) {
  run_ranks(4, [](World&) {
    std::mt19937 random(5);
    auto mesh = make_mesh({2, 2});
    for (int i = 0; i < 200; ++i) {
      const Dims sizes{1 + static_cast<int64_t>(random() % 9), 1 + static_cast<int64_t>(random() % 9)};
      const auto from = random_placements(sizes, mesh->grid(), random);
      const auto to = random_placements(sizes, mesh->grid(), random);
      SCOPED_TRACE(fmt::format("case {}: [{}] {} -> {}", i, fmt::join(sizes, ", "), to_string(from), to_string(to)));
      const at::Tensor dense = at::arange(1, sizes[0] * sizes[1] + 1, at::kDouble).reshape(sizes);
      RedistributeOptions options;
      if (i % 2) options.plan.objective = PlanOptions::Objective::kTime;
      if (i % 4 < 2) options.plan.links = {{1000, 0.1}, {1, 100}};
      if (i % 3 == 0) options.plan.memory_cap = 64;
      options.async_op = i % 5 < 2;
      const at::Tensor moved = redistribute(lay_out(dense, mesh, from), mesh, to, options);
      EXPECT_TRUE(at::equal(full_tensor(moved), dense));
    }
  });
}

TEST(RedistributeTest, AsyncWaitsAtFirstUse) {
  run_ranks(2, [](World&) {
    auto mesh = make_mesh({2});
    const at::Tensor dense = at::arange(12, at::kDouble).reshape({6, 2});
    const at::Tensor x = lay_out(dense, mesh, {Placement::shard(0)});
    RedistributeOptions options;
    options.async_op = true;
    const at::Tensor moved = redistribute(x, mesh, {Placement::replicate()}, options);
    EXPECT_TRUE(maybe_dtensor(moved)->is_pending());
    EXPECT_EQ(moved.sizes(), dense.sizes());  // shapes need no values
    EXPECT_TRUE(maybe_dtensor(moved)->is_pending());
    EXPECT_TRUE(at::equal(to_local(moved + moved), dense * 2));
    EXPECT_FALSE(maybe_dtensor(moved)->is_pending());
    const at::Tensor sum =
        redistribute(from_local(dense, mesh, {Placement::partial()}), mesh, {Placement::replicate()}, options);
    EXPECT_TRUE(maybe_dtensor(sum)->is_pending());
    EXPECT_TRUE(at::equal(to_local(sum), dense * 2));
    EXPECT_TRUE(at::equal(dense, at::arange(12, at::kDouble).reshape({6, 2})));  // the given tensor is not written to
    redistribute(from_local(dense, mesh, {Placement::partial()}), mesh, {Placement::replicate()}, options);
    redistribute(x, mesh, {Placement::replicate()}, options);  // dropped unused: the messages still come to their end
    const at::Tensor tracked = x.detach().requires_grad_();
    full_tensor(redistribute(tracked, mesh, {Placement::shard(1)}, options)).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(tracked.grad()), at::ones_like(dense)));
  });
}

TEST(RedistributeTest, AsyncMovesSendNothingLaterAndDoNotSeeLaterWrites) {
  run_ranks(4, [](World& world) {
    auto mesh = make_mesh({4});
    const at::Tensor dense = at::arange(64, at::kDouble).reshape({8, 8});
    RedistributeOptions options;
    options.async_op = true;
    options.plan.memory_cap = 64;
    for (const Placement& to : {Placement::shard(1), Placement::replicate()}) {
      const at::Tensor x = lay_out(dense, mesh, {Placement::shard(0)});
      const at::Tensor first = redistribute(x, mesh, {to}, options);
      if (world.rank() == 0) to_local(first);  // one rank looks earlier than the others
      x.zero_();
      const at::Tensor second = redistribute(lay_out(dense + 100, mesh, {Placement::shard(0)}), mesh, {to});
      EXPECT_TRUE(at::equal(full_tensor(first), dense));
      EXPECT_TRUE(at::equal(full_tensor(second), dense + 100));
    }
    const at::Tensor partial = from_local(dense.clone(), mesh, {Placement::partial()});
    const at::Tensor sum = redistribute(partial, mesh, {Placement::shard(0)}, options);
    to_local(partial).zero_();
    EXPECT_TRUE(at::equal(full_tensor(sum), dense * 4));
  });
}

TEST(RedistributeTest, SeveralThreadsMayUseOnePendingTensor) {
  run_ranks(2, [](World&) {
    auto mesh = make_mesh({2});
    RedistributeOptions options;
    options.async_op = true;
    for (int i = 0; i < 50; ++i) {
      const at::Tensor x = lay_out(at::ones({4, 2}), mesh, {Placement::shard(0)});
      const at::Tensor moved = redistribute(x, mesh, {Placement::replicate()}, options);
      std::vector<int64_t> n_elements(3);
      std::vector<std::thread> users;
      for (int64_t& n : n_elements) users.emplace_back([&] { n = maybe_dtensor(moved)->shards().at(0).numel(); });
      for (std::thread& user : users) user.join();
      EXPECT_EQ(n_elements, (std::vector<int64_t>{8, 8, 8}));
    }
  });
}

TEST(RedistributeTest, AMoveToTheSameLayoutIsAView) {
  run_ranks(2, [](World&) {
    auto mesh = make_mesh({2});
    const at::Tensor x = lay_out(at::ones({4, 2}), mesh, {Placement::shard(0)}).requires_grad_();
    const at::Tensor y = x * 1;
    const at::Tensor same = redistribute(y, {Placement::shard(0)});
    const at::Tensor squares = (same * same).sum();
    y.mul_(2);
    EXPECT_THROW(squares.backward(), c10::Error);  // a value that it needs was changed
    EXPECT_TRUE(at::equal(full_tensor(same.detach()), at::full({4, 2}, 2.0)));
  });
}

TEST(RedistributeTest, ReductionsThatDoNotCommuteKeepTheirOrder) {
  run_ranks(4, [](World& world) {
    auto mesh = make_mesh({2, 2});
    const at::Tensor all = at::tensor({1.0, 50.0, 7.0, 2.0, 30.0, 9.0, 4.0, 40.0}).reshape({4, 2});
    const at::Tensor x = from_local(all[world.rank()], mesh, {Placement::partial(), Placement::partial(Reduce::kMax)});
    const at::Tensor expected = at::tensor({37.0, 90.0});  // the sum of the maxima
    const Placement highest = Placement::partial(Reduce::kMax);
    for (const Placements& to : {Placements{Placement::replicate(), highest}, Placements{Placement::shard(0), highest},
                                 Placements{Placement::shard(0), Placement::replicate()},
                                 Placements{Placement::partial(), Placement::replicate()}})
      for (const auto objective : {PlanOptions::Objective::kBytes, PlanOptions::Objective::kTime}) {
        RedistributeOptions options;
        options.plan.objective = objective;
        options.plan.links = {{20, 10}, {20, 0.000001}};
        EXPECT_TRUE(at::equal(full_tensor(redistribute(x, mesh, to, options)), expected)) << to_string(to);
      }
  });
}

TEST(RedistributeTest, WhatCannotBeReducedIsRefusedBeforeAnyMessage) {
  run_ranks(2, [](World&) {
    auto mesh = make_mesh({2});
    const at::Tensor whole = at::ones({4, 2}, at::kLong);
    const at::Tensor mean = from_local(whole, mesh, {Placement::partial(Reduce::kAvg)});
    RedistributeOptions options;
    for (const bool is_async : {false, true}) {
      options.async_op = is_async;
      const CommTrace trace;
      EXPECT_THROW(redistribute(mean, mesh, {Placement::shard(0)}, options), c10::TypeError);
      EXPECT_EQ(trace.total_count(), 0);
    }
    const at::Tensor sum = from_local(whole.to(at::kUInt32), mesh, {Placement::partial()});
    EXPECT_TRUE(at::equal(full_tensor(redistribute(sum, {Placement::shard(0)})).to(at::kLong), whole * 2));
  });
}

TEST(RedistributeTest, AnAllReducedTensorKeepsItsOrderInMemory) {
  run_ranks(2, [](World&) {
    auto mesh = make_mesh({2});
    const at::Tensor x = from_local(at::arange(12, at::kDouble).reshape({3, 4}), mesh, {Placement::partial()}).t();
    const at::Tensor whole = redistribute(x, {Placement::replicate()});
    EXPECT_EQ(to_local(whole).strides(), whole.strides());
    EXPECT_TRUE(at::equal(full_tensor(whole), at::arange(12, at::kDouble).reshape({3, 4}).t() * 2));
  });
}

TEST(RedistributeTest, AFailedAsyncMoveSaysWhyAtEveryUse) {
  error_of_ranks(
      2,
      [](World& world) {
        auto mesh = make_mesh({2});
        const at::Tensor x = lay_out(at::ones({4, 2}), mesh, {Placement::shard(0)});
        if (world.rank() == 1) return;  // never sends its part
        RedistributeOptions options;
        options.async_op = true;
        const at::Tensor moved = redistribute(x, mesh, {Placement::replicate()}, options);
        EXPECT_THROW(to_local(moved), c10::DistBackendError);
        EXPECT_THROW(to_local(moved), c10::DistBackendError);
      },
      std::chrono::milliseconds(2000));
}

TEST(RedistributeTest, AnAsyncReductionIsNotWaitedForWhileAnExceptionUnwinds) {
  const StrictThreads strict(true);  // where the others need not call for a reduction to start
  std::promise<void> unwound;
  run_ranks(2, [&](World& world) {
    auto mesh = make_mesh({2});
    const at::Tensor x = from_local(at::ones({4}), mesh, {Placement::partial()});
    full_tensor(x);
    if (world.rank() == 1) {  // never calls, while rank 0 may wait
      EXPECT_EQ(unwound.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
      return;
    }
    try {
      RedistributeOptions options;
      options.async_op = true;
      const at::Tensor moved = redistribute(x, mesh, {Placement::replicate()}, options);
      throw std::runtime_error("the program's own");
    } catch (const std::runtime_error&) {
      unwound.set_value();
    }
  });
}

TEST(RedistributeTest, ManyTensorsShareOneExchangeAndTheirGradientsToo) {
  run_ranks(3, [](World&) {
    auto mesh = make_mesh({3});
    const std::vector<at::Tensor> dense{at::arange(21, at::kDouble).reshape({7, 3}),
                                        at::arange(8, at::kFloat).reshape({4, 2}),
                                        at::arange(5, at::kByte).reshape({5, 1})};
    std::vector<at::Tensor> sources;
    for (const at::Tensor& one : dense) sources.push_back(lay_out(one, mesh, {Placement::shard(0)}));
    sources[0].requires_grad_();
    sources[1].requires_grad_();
    const std::vector<Placements> to{{Placement::shard(1)}, {Placement::replicate()}, {Placement::replicate()}};
    std::vector<at::Tensor> moved;
    {
      const CommTrace trace;
      moved = redistribute_many(sources, to);
      EXPECT_EQ(trace.total_count(), 1);
    }
    for (size_t i = 0; i < dense.size(); ++i) {
      EXPECT_TRUE(at::equal(full_tensor(moved[i]), dense[i]));
      EXPECT_EQ(spec_of(moved[i])->placements(), c10::ArrayRef(to[i]));
    }
    torch::autograd::backward({(full_tensor(moved[0]) * 2).sum() + full_tensor(moved[1]).sum().to(at::kDouble)}, {});
    EXPECT_TRUE(at::equal(full_tensor(sources[0].grad()), at::full_like(dense[0], 2)));
    EXPECT_TRUE(at::equal(full_tensor(sources[1].grad()), at::ones_like(dense[1])));
    EXPECT_EQ(spec_of(sources[0].grad()), spec_of(sources[0]));
    EXPECT_FALSE(moved[2].requires_grad());  // its source is frozen
    EXPECT_TRUE(redistribute_many({}, {}).empty());
    EXPECT_THROW(redistribute_many(sources, {to[0]}), c10::ValueError);
  });
}

TEST(RedistributeTest, PlansAndBuffersAreKeptWithinBounds) {
  run_ranks(2, [](World&) {
    auto mesh = make_mesh({2});
    const at::Tensor x = lay_out(at::ones({6, 6}), mesh, {Placement::shard(1)});
    redistribute(x, {Placement::shard(0)});
    const MoveCounters before = move_counters();
    for (int i = 0; i < 10; ++i) redistribute(x, {Placement::shard(0)});
    const MoveCounters after = move_counters();
    EXPECT_EQ(after.plan_hits - before.plan_hits, 10);
    EXPECT_EQ(after.plan_misses, before.plan_misses);
    EXPECT_EQ(after.buffer_misses, before.buffer_misses);
    EXPECT_GT(after.buffer_hits, before.buffer_hits);
    for (int64_t n = 0; n < 1100; ++n)
      redistribute(lay_out(at::ones({n}), mesh, {Placement::replicate()}), {Placement::shard(0)});
    EXPECT_LE(move_counters().n_plans, 1024);
  });
}

TEST(RedistributeTest, SummedContributionsOfPartialAreReduced) {
  run_ranks(4, [](World& world) {
    auto mesh = make_mesh({2, 2});
    const at::Tensor mine = at::full({5, 3}, static_cast<double>(1 << world.rank()));
    const at::Tensor partial = from_local(mine, mesh, {Placement::partial(), Placement::partial()});
    for (const Placements& to :
         {Placements{Placement::shard(0), Placement::replicate()},
          Placements{Placement::replicate(), Placement::shard(1)}, Placements{Placement::shard(0), Placement::shard(0)},
          Placements{Placement::partial(), Placement::shard(0)}})
      EXPECT_TRUE(at::equal(full_tensor(redistribute(partial, to)), at::full({5, 3}, 15.0)));
    const at::Tensor highest =
        from_local(mine, mesh, {Placement::partial(Reduce::kMax), Placement::partial(Reduce::kMax)});
    EXPECT_TRUE(at::equal(full_tensor(redistribute(highest, {Placement::shard(0), Placement::shard(1)})),
                          at::full({5, 3}, 8.0)));
    const at::Tensor mixed =
        from_local(mine, mesh, {Placement::partial(Reduce::kAvg), Placement::partial(Reduce::kMax)});
    EXPECT_TRUE(at::equal(full_tensor(mixed), at::full({5, 3}, 5.0)));  // the mean of 2 and 8
  });
}

TEST(RedistributeTest, AvgOfHalvesOverflowsOnlyWhereItIsNoHalf) {
  run_ranks(4, [](World&) {
    auto mesh = make_mesh({4});
    const at::Tensor whole = at::full({6, 3}, 40'000, at::kHalf).t();
    const at::Tensor mean =
        from_local(whole, mesh, {Placement::partial(Reduce::kAvg)}, {.shape = Dims{3, 6}, .stride = Dims{1, 3}});
    for (const Placement& to : {Placement::replicate(), Placement::shard(0), Placement::shard(1, {1, 0, 5, 0})}) {
      const at::Tensor moved = redistribute(mean, {to});
      EXPECT_EQ(moved.strides(), whole.strides());
      EXPECT_TRUE(at::equal(full_tensor(moved), whole)) << to_string(to) << full_tensor(moved);
    }
  });
}

TEST(RedistributeTest, GradientGoesBackToTheSourceLayout) {
  run_ranks(3, [](World&) {
    auto mesh = make_mesh({3});
    at::Tensor x = distribute_tensor(at::arange(20, at::kDouble).reshape({10, 2}), mesh, {Placement::shard(0)})
                       .set_requires_grad(true);
    const at::Tensor weight = at::arange(20, at::kDouble).reshape({10, 2});
    (full_tensor(redistribute(x, {Placement::shard(1)})) * weight).sum().backward();
    ASSERT_TRUE(is_dtensor(x.grad()));
    EXPECT_EQ(spec_of(x.grad()), spec_of(x));
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), weight));
  });
}

TEST(RedistributeTest, FromLocalAndToLocalShareMemoryAndGradients) {
  run_ranks(3, [](World& world) {
    auto mesh = make_mesh({3});
    const at::Tensor local = at::full({2, 2}, static_cast<double>(world.rank())).set_requires_grad(true);
    const at::Tensor x = from_local(local, mesh, {Placement::shard(0)});
    EXPECT_EQ(x.sizes(), c10::IntArrayRef({6, 2}));
    const at::Tensor back = to_local(x);
    EXPECT_EQ(back.data_ptr(), local.data_ptr());
    (back * (world.rank() + 1)).sum().backward();
    EXPECT_TRUE(at::equal(local.grad(), at::full({2, 2}, world.rank() + 1.0)));
  });
}

TEST(RedistributeTest, LocalSlicesSendNothing) {
  run_ranks(4, [](World&) {
    auto mesh = make_mesh({2, 2});
    const at::Tensor x = lay_out(at::ones({5, 3}), mesh, Placements(2));
    CommTrace trace;
    redistribute(x, {Placement::shard(0), Placement::shard(1)});
    redistribute(x, {Placement::partial(), Placement::shard(1)});
    EXPECT_EQ(trace.total_count(), 0);
  });
}

TEST(RedistributeTest, ReadersShareTheMemoryOfASlice) {
  run_ranks(4, [](World&) {
    auto mesh = make_mesh({2, 2});
    const at::Tensor x = lay_out(at::arange(15).view({5, 3}), mesh, Placements(2));
    const auto& own = maybe_dtensor(x)->shards();
    const SpecPtr slice = spec_of(x)->with_placements({Placement::shard(0), Placement::shard(1)});
    const Shards read = move(spec_of(x), own, slice, {}, MoveMemory::kShared), kept = move(spec_of(x), own, slice);
    EXPECT_TRUE(read[0].is_alias_of(own[0]));
    EXPECT_FALSE(kept[0].is_alias_of(own[0]));
    EXPECT_TRUE(read[0].equal(kept[0]));
  });
}

TEST(RedistributeTest, RanksThatMoveDifferentlyAreNamedUnderTheOrderCheck) {
  const bool was_on = set_order_check(true);
  const std::string error = error_of_ranks(2, [](World& world) {
    auto mesh = make_mesh({2});
    const at::Tensor x = lay_out(at::ones({4, 2}), mesh, {Placement::shard(0)});
    redistribute(x, {world.rank() == 0 ? Placement::replicate() : Placement::shard(1)});
  });
  set_order_check(was_on);
  expect_error("[check] rank 0 is about to exchange for redistribute (", error);
  expect_error("[4, 2] as [Shard(0)] on (2) -> ", error);
  expect_error("[4, 2] as [Shard(1)] on (2)", error);
}

TEST(RedistributeTest, WrongPlacementsFailOnEveryRankBeforeAnyMessage) {
  run_ranks(2, [](World&) {
    auto mesh = make_mesh({2});
    const at::Tensor x = lay_out(at::ones({5, 3}), mesh, {Placement::shard(0)});
    CommTrace trace;
    EXPECT_THROW(redistribute(x, {Placement::shard(2)}), c10::IndexError);
    EXPECT_THROW(redistribute(x, {Placement::shard(0, {1, 1})}), c10::ValueError);
    EXPECT_THROW(redistribute(x, {Placement::shard(0), Placement::shard(1)}), c10::ValueError);
    EXPECT_THROW(from_local(at::ones({2, 3}), mesh, {Placement::shard(0, {1, 1})}), c10::ValueError);
    EXPECT_EQ(trace.total_count(), 0);
  });
}

TEST(RedistributeTest, RunCheckTellsAllRanksOfTheOneThatDiffers) {
  const std::string error = error_of_ranks(3, [](World& world) {
    auto mesh = make_mesh({3});
    FromLocalOptions options;
    options.run_check = true;
    from_local(at::ones({world.rank() == 2 ? 3 : 2, 2}), mesh, {Placement::shard(0)}, options);
  });
  expect_error("[from_local]", error);
}

}  // namespace
}  // namespace shardwise::redistribute_test
