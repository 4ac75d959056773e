// A cache of a table's rows against the table without one: what lookups see, what optimizers change, what leaves, and what is written back.
#include "ops/embedding/hot_rows.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

#include <optional>
#include <random>

namespace shardwise::hot_rows_test {
namespace {

using Method = RowOptimizer::Method;
constexpr int64_t kRows = 40, kWidth = 3;

at::Tensor some_rows() { return at::arange(kRows * kWidth, at::kFloat).view({kRows, kWidth}).remainder(17).sub(8); }

HotRowsPtr cache_of(const at::Tensor& slow, int64_t n_slots) {
  return std::make_shared<HotRows>(slow, n_slots, c10::Device(at::kCPU));
}

at::Tensor ids_of(std::vector<int64_t> ids) { return at::tensor(ids, at::kLong); }

/// The values that a lookup of held ids sees.
at::Tensor seen(const HotRows& cache, const HotRows::Result& held) {
  return cache.values().index_select(0, held.hold->slots());
}

/// Looks the ids up, and ends the lookup. Returns how many of their rows were not there.
int64_t misses_of(HotRows& cache, std::vector<int64_t> ids) {
  const int64_t before = cache.counts().misses;
  EXPECT_TRUE(cache.hold(ids_of(std::move(ids))).hold);
  return cache.counts().misses - before;
}

TEST(HotRowsTest, LookupsSeeTheTable) {
  for (const int64_t n_slots : {1, 2, 7, 40, 1000}) {
    const at::Tensor slow = some_rows();
    const auto cache = cache_of(slow, n_slots);
    EXPECT_EQ(cache->n_slots(), std::min(n_slots, kRows));
    std::mt19937 random(1);
    for (int step = 0; step < 60; ++step) {
      std::vector<int64_t> ids(random() % 6);
      for (int64_t& id : ids) id = (3 * step + static_cast<int64_t>(random() % std::min(n_slots, kRows))) % kRows;
      const auto held = cache->hold(ids_of(ids));
      ASSERT_TRUE(held.hold) << n_slots;
      EXPECT_TRUE(seen(*cache, held).equal(slow.index_select(0, ids_of(ids))));
    }
    EXPECT_TRUE(slow.equal(some_rows()));
    EXPECT_EQ(cache->counts().bytes_written, 0);
  }
}

TEST(HotRowsTest, WhatDoesNotFitChangesNothing) {
  const at::Tensor slow = some_rows();
  const auto cache = cache_of(slow, 3);
  auto held = cache->hold(ids_of({4, 4, 9}));
  const HotRows::Counts before = cache->counts();
  const auto refused = cache->hold(ids_of({9, 1, 2}));
  EXPECT_FALSE(refused.hold);
  EXPECT_EQ(refused.n_rows, 3);
  EXPECT_EQ(refused.n_held, 2);
  EXPECT_EQ(cache->counts().misses, before.misses);
  EXPECT_TRUE(seen(*cache, held).equal(slow.index_select(0, ids_of({4, 4, 9}))));
  const auto beside = cache->hold(ids_of({9, 1}));  // row 9 is held twice
  ASSERT_TRUE(beside.hold);
  held.hold->release();
  held.hold->release();
  EXPECT_FALSE(cache->hold(ids_of({0, 2, 3})).hold) << "9 and 1 are held";
  EXPECT_TRUE(cache->hold(ids_of({2})).hold) << "4 is not";
  EXPECT_TRUE(seen(*cache, beside).equal(slow.index_select(0, ids_of({9, 1}))));
}

TEST(HotRowsTest, TheLeastFrequentRowLeaves) {
  const auto cache = cache_of(some_rows(), 2);
  EXPECT_EQ(misses_of(*cache, {0}), 1);
  EXPECT_EQ(misses_of(*cache, {0, 0}), 0);
  EXPECT_EQ(misses_of(*cache, {1}), 1);
  EXPECT_EQ(misses_of(*cache, {2}), 1);  // in place of row 1
  EXPECT_EQ(misses_of(*cache, {0}), 0);
  EXPECT_EQ(misses_of(*cache, {1}), 1);  // in place of row 2
  EXPECT_EQ(cache->counts().evictions, 2);
}

TEST(HotRowsTest, RowsThatWereFrequentOnceMakeRoom) {
  const auto cache = cache_of(some_rows(), 2);
  for (int i = 0; i < 15; ++i) misses_of(*cache, {0});
  int64_t first = 0, last = 0;
  for (int i = 0; i < 200; ++i) {
    const int64_t missed = misses_of(*cache, {1 + i % 2});
    (i < 10 ? first : last) += i < 10 || i >= 180 ? missed : 0;
  }
  EXPECT_EQ(first, 10) << "1 and 2 take turns in one slot";
  EXPECT_EQ(last, 0) << "row 0 has left";
}

/// A table in memory beside one behind a cache, and both their optimizers.
struct Pair {
  MeshPtr mesh = make_mesh({1});
  at::Tensor plain = lay_out(some_rows(), mesh, {Placement::replicate()}), table = plain.clone();
  RowOptimizer plain_optimizer, optimizer;
  HotRowsPtr cache;

  Pair(Method method, int64_t n_slots)
      : plain_optimizer(plain, {.method = method, .lr = 0.1, .eps = 1e-6}),
        optimizer(table, {.method = method, .lr = 0.1, .eps = 1e-6}),
        cache(cache_of(maybe_dtensor(table)->shards()[0], n_slots)) {}

  /// A step of both with the same gradients.
  void update(const at::Tensor& ids, const RowGrads& grads) {
    const IdGroups groups = group_ids(ids, 0, kRows);
    plain_optimizer.begin_step();
    update_rows(plain_optimizer.updated_rows(plain_rows(), 0), grads, groups);
    optimizer.begin_step();
    cache->update(optimizer, optimizer.updated_rows(maybe_dtensor(table)->shards()[0], 0), grads, groups);
  }
  at::Tensor plain_rows() const { return maybe_dtensor(plain)->shards()[0]; }
  void expect_equal() const {
    optimizer.write_back();
    cache->write_back();
    EXPECT_TRUE(full_tensor(table).equal(full_tensor(plain)));
    for (size_t i = 0; i < optimizer.state().size(); ++i)
      EXPECT_TRUE(full_tensor(optimizer.state()[i]).equal(full_tensor(plain_optimizer.state()[i])));
  }
};

TEST(HotRowsTest, StepsOfOptimizersAreThoseWithoutACache) {
  run_ranks(1, [](World&) {
    for (const Method method :
         {Method::kSgd, Method::kAdagrad, Method::kRowWiseAdagrad, Method::kAdam, Method::kRowWiseAdam})
      for (const int64_t n_slots : {1, 5, 12, 40}) {
        Pair pair(method, n_slots);
        std::mt19937 random(3);
        std::optional<HotRows::Result> held;  // of the lookup before
        for (int step = 0; step < 80; ++step) {
          const int64_t n_ids = 1 + static_cast<int64_t>(random() % std::min<int64_t>(n_slots, 4));
          std::vector<int64_t> ids;
          for (int64_t i = 0; i < n_ids; ++i) ids.push_back(static_cast<int64_t>(random() % kRows));
          if (n_slots < 10) held.reset();
          auto now = pair.cache->hold(ids_of(ids));
          ASSERT_TRUE(now.hold);
          EXPECT_TRUE(seen(*pair.cache, now).equal(pair.plain_rows().index_select(0, ids_of(ids))));
          if (random() % 4 == 0) {  // a backward that comes after its hold was released, and others took the slots
            now.hold->release();
            misses_of(*pair.cache, {static_cast<int64_t>(random() % kRows)});
          }
          pair.update(ids_of(ids), {at::randn({n_ids, kWidth}), {}, {}, {}});
          if (random() % 10 == 0) {  // somebody writes to the table
            pair.cache->expect_write();
            maybe_dtensor(pair.table)->shards()[0].mul_(0.5);
            pair.plain_rows().mul_(0.5);
          }
          if (random() % 20 == 0) pair.expect_equal();
          held = std::move(now);
        }
        held.reset();
        pair.expect_equal();
        const HotRows::Counts counts = pair.cache->counts();
        EXPECT_EQ(counts.evictions > 0, n_slots < kRows) << n_slots;
        EXPECT_GT(counts.bytes_written, 0);
        EXPECT_EQ(counts.value_bytes, n_slots * kWidth * 4);
        EXPECT_EQ(counts.state_bytes == 0, method == Method::kSgd);
      }
  });
}

TEST(HotRowsTest, AnotherOptimizerGoesOnWithTheValues) {
  run_ranks(1, [](World&) {
    Pair pair(Method::kAdagrad, 6);
    const RowGrads grads{at::ones({2, kWidth}), {}, {}, {}};
    pair.cache->hold(ids_of({3, 8}));
    pair.update(ids_of({3, 8}), grads);
    const RowOptimizer::Options adam{.method = Method::kAdam, .lr = 0.2, .eps = 1e-6};
    pair.optimizer.write_back();
    pair.optimizer = RowOptimizer(pair.table, adam);
    pair.plain_optimizer = RowOptimizer(pair.plain, adam);
    for (int step = 0; step < 3; ++step) {
      pair.cache->hold(ids_of({8, 5}));
      pair.update(ids_of({8, 5}), grads);
    }
    pair.expect_equal();
    EXPECT_EQ(pair.cache->counts().state_bytes, 2 * 6 * kWidth * 4);
  });
}

}  // namespace
}  // namespace shardwise::hot_rows_test
