#include "plans/plan.h"

#include "plans/traffic.h"
#include "plans/transfers.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

namespace shardwise::plan_test {
namespace {

using Objective = PlanOptions::Objective;

std::shared_ptr<const RankGrid> grid(Dims shape, std::vector<int64_t> ranks = {}) {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  for (int64_t rank = 0; static_cast<int64_t>(ranks.size()) < size; ++rank) ranks.push_back(rank);
  return std::make_shared<const RankGrid>(RankGrid{std::move(shape), std::move(ranks)});
}

const Placement R = Placement::replicate(), P = Placement::partial(), S0 = Placement::shard(0),
                S1 = Placement::shard(1);

Plan plan_on(Dims shape, c10::IntArrayRef sizes, Placements from, Placements to, const PlanOptions& options = {}) {
  const auto ranks = grid(std::move(shape));
  return plan(Layout(sizes, ranks, std::move(from)), Layout(sizes, ranks, std::move(to)), 4, options);
}

std::vector<int64_t> ranks_of(const Step& step) {
  std::vector<int64_t> ranks = step.from.grid().ranks;
  for (const int64_t rank : step.to.grid().ranks)
    if (!step.from.grid().coord_of(rank)) ranks.push_back(rank);
  return ranks;
}

std::string words(const std::vector<Transfer>& transfers, int64_t rank) {
  std::string result;
  for (const Transfer& transfer : transfers)
    if (transfer.rank == rank) result += to_string(transfer.box);
  return result;
}

/// Each pair names the same boxes in the same order, and every wanted element comes once, or once from each contributor.
void check_transfers(const Step& step) {
  std::map<int64_t, Transfers> parts;
  for (const int64_t rank : ranks_of(step)) parts.emplace(rank, transfers(step, rank));
  for (const auto& [rank, part] : parts) {
    for (const auto& [peer, other] : parts)
      if (peer != rank) {
        ASSERT_EQ(words(part.sends, peer), words(other.receives, rank));
      }
    const auto wanted = step.to.boxes(rank);
    const int64_t times = step.kind == Step::Kind::kReduce ? step.from.grid().shape[step.mesh_dim] : 1;
    for (size_t piece = 0; piece < wanted.size(); ++piece) {
      int64_t arrived = 0;
      for (size_t i = 0; i < part.receives.size(); ++i) {
        const Transfer& one = part.receives[i];
        if (one.piece != static_cast<int64_t>(piece)) continue;
        ASSERT_TRUE(wanted[piece].contains(one.box));
        arrived += one.box.numel();
        for (size_t j = 0; j < i; ++j)
          if (part.receives[j].piece == one.piece && part.receives[j].term == one.term) {
            ASSERT_TRUE(intersect(part.receives[j].box, one.box).empty());
          }
      }
      ASSERT_EQ(arrived, wanted[piece].numel() * times);
    }
  }
}

/// The closed form against the list of boxes.
void check_traffic(const Step& step, int64_t rank) {
  const Transfers part = transfers(step, rank);
  int64_t sent = 0, received = 0;
  std::set<int64_t> senders;
  for (const Transfer& send : part.sends) sent += send.box.numel() * 4;
  for (const Transfer& receive : part.receives)
    if (receive.rank != rank) {
      received += receive.box.numel() * 4;
      senders.insert(receive.rank);
    }
  const RankTraffic counted = traffic(step, 4, {}, rank);
  EXPECT_EQ(counted.sent, sent);
  EXPECT_EQ(counted.received, received);
  EXPECT_EQ(counted.n_messages, static_cast<int64_t>(senders.size()));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return {};
}

bool is_partial(c10::ArrayRef<Placement> placements) { return std::ranges::any_of(placements, &Placement::is_partial); }

/// Random pairs of layouts: on one grid, or on two grids of one world.
void check_random_plans(bool two_grids, int n_cases, const PlanOptions& options = {}) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  const std::vector<Dims> shapes{{1}, {3}, {4}, {2, 2}, {3, 2}, {2, 2, 2}, {2, 1, 3}, {1, 2, 2, 2}};
  for (int i = 0; i < n_cases; ++i) {
    std::vector<int64_t> ranks(8);
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto random_grid = [&] {
      const Dims& shape = shapes[random() % shapes.size()];
      std::shuffle(ranks.begin(), ranks.end(), random);
      int64_t size = 1;
      for (const int64_t extent : shape) size *= extent;
      return grid(shape, {ranks.begin(), ranks.begin() + size});
    };
    const auto first = random_grid(), second = two_grids ? random_grid() : first;
    Dims sizes;
    for (auto n = random() % 4; n > 0; --n) sizes.push_back(static_cast<int64_t>(random() % 8));
    const Layout source(sizes, first, random_placements(sizes, *first, random));
    const Layout destination(sizes, second, random_placements(sizes, *second, random));
    SCOPED_TRACE(fmt::format("seed {}, case {}: {} -> {}", kSeed, i, to_string(source), to_string(destination)));
    const Plan made = plan(source, destination, 4, options);
    Layout at = source;
    for (const Step& step : made.steps) {
      EXPECT_TRUE(step.from == at);
      at = step.to;
      if (!step.has_boxes()) continue;
      check_transfers(step);
      for (const int64_t rank : ranks_of(step)) check_traffic(step, rank);
    }
    EXPECT_TRUE(at == destination);
    if (!is_partial(source.placements()) && options.objective == Objective::kBytes)
      for (const auto& [rank, share] : simulate(made)) {
        EXPECT_EQ(share.received, share.bound) << "rank " << rank;
      }
  }
}

TEST(PlanTest, StepsLeadFromSourceToDestinationAndMoveEveryBoxOnce) { check_random_plans(false, 1500); }

TEST(PlanTest, AMoveBetweenMeshesIsPlannedTheSameWay) { check_random_plans(true, 1500); }

TEST(PlanTest, SequencesByTimeLeadThereToo) {
  PlanOptions options;
  options.objective = Objective::kTime;
  check_random_plans(false, 150, options);
}

TEST(PlanTest, RoutesAreCalledByTheNamesOfTheirCollectives) {
  const struct {
    Dims shape;
    Placements from, to;
    const char* route;
  } rows[] = {
      // shape, from, to, route
      {{4}, {S0}, {S0}, "none"},
      {{4}, {R}, {S0}, "slice"},
      {{1}, {S0}, {S1}, "slice"},
      {{4}, {R}, {P}, "make-partial"},
      {{4}, {S0}, {R}, "all-gather"},
      {{4}, {S0}, {S1}, "all-to-all"},
      {{4}, {P}, {S0}, "reduce-scatter"},
      {{4}, {P}, {R}, "all-reduce"},
      {{2, 2}, {S0, S1}, {S1, S0}, "all-to-all"},
      {{2, 2}, {P, S0}, {R, R}, "all-reduce + all-gather"},
      {{2, 2}, {P, R}, {R, S0}, "all-reduce"},  // of the slice
      {{2, 2}, {P, P}, {S0, S1}, "reduce-scatter + reduce-scatter"},
      {{2, 2}, {S0, R}, {S0, P}, "make-partial"},
  };
  for (const auto& row : rows) {
    const Plan made = plan_on(row.shape, {8, 8}, row.from, row.to);
    EXPECT_EQ(made.route(), row.route) << to_string(row.from) << " -> " << to_string(row.to);
  }
  const Plan turned = plan(Layout({8, 8}, grid({4}), {S0}), Layout({8, 8}, grid({4}, {1, 2, 3, 0}), {S0}), 4);
  EXPECT_EQ(turned.route(), "permute");
}

TEST(PlanTest, ASliceComesBeforeTheAllReduceAndAGatherAfterIt) {
  EXPECT_EQ(traffic(plan_on({2, 2}, {8, 8}, {P, R}, {R, S0}), 0).received, 128);  // half of 256 bytes, ring of 2
  EXPECT_EQ(traffic(plan_on({2, 2}, {8, 8}, {P, S0}, {R, R}), 0).received, 256);  // 128 and the other half
}

TEST(PlanTest, PrintsOneLine) {
  EXPECT_EQ(
      to_string(plan_on({4}, {4096, 1024}, {S0}, {S1})),
      "all-to-all | 1 round | received 12,582,912, bound 12,582,912, ratio 1.00 | most loaded rank 0: 3,145,728 | "
      "buffers 6,291,456");
}

TEST(PlanTest, SlowLinksAreUsedLastAndLeast) {
  PlanOptions options;
  options.objective = Objective::kTime;
  options.links = {{1000, 0.1}, {1, 100}};  // machines, and what is inside one
  // A sum over all: within the machines first, then across with half of the bytes.
  const Plan made = plan_on({2, 2}, {4096, 1024}, {P, P}, {R, R}, options);
  double across = 0;
  for (const Step& step : made.steps)
    if (step.mesh_dim == 0) across += static_cast<double>(traffic(step, 4, {}, 0).received);
  EXPECT_EQ(made.route(), "reduce-scatter + all-reduce + all-gather");
  EXPECT_EQ(across, 4096 * 1024 * 4 / 2);
  EXPECT_LT(summarize(made).seconds,
            0.6 * summarize(plan_on({2, 2}, {4096, 1024}, {P, P}, {R, R})).seconds + summarize(made).seconds);
}

TEST(PlanTest, TimePrefersFewMessagesWhereLatencyRules) {
  PlanOptions options;
  options.objective = Objective::kTime;
  options.links = {{50, 1000}};
  EXPECT_EQ(plan_on({4}, {8, 8}, {S0}, {S1}, options).route(), "all-to-all");
}

TEST(PlanTest, AMemoryCapCutsExchangesIntoRounds) {
  PlanOptions options;
  options.memory_cap = 1 << 20;
  const Plan made = plan_on({4}, {4096, 1024}, {S0}, {S1}, options);
  EXPECT_EQ(made.steps[0].n_rounds, 6);
  EXPECT_LE(summarize(made).buffer_bytes, options.memory_cap);
  const Box box{{2, 0}, {3, 7}};
  int64_t numel = 0;
  for (int64_t round = 0; round < 5; ++round) numel += part_of_round(box, round, 5).numel();
  EXPECT_EQ(numel, box.numel());
}

TEST(PlanTest, LargeReductionsHoldOneTermAtATime) {
  const auto n_rounds = [](Dims shape, int64_t n_rows, Placements from, Placements to) {
    return plan_on(std::move(shape), {n_rows, 1024}, std::move(from), std::move(to)).steps[0].n_rounds;
  };
  EXPECT_EQ(n_rounds({4}, 4 * 2048, {P}, {S0}), 1);
  EXPECT_EQ(n_rounds({4}, 4 * 8192, {P}, {S0}), 3);  // 32 MiB per rank, from three others
  EXPECT_EQ(n_rounds({2, 2}, 2 * 8192, {P, R}, {S0, R}), 1);
  EXPECT_EQ(n_rounds({8}, 8 * 4096, {P}, {S0}), 2);
  EXPECT_EQ(n_rounds({4}, 4 * 8192, {S0}, {S1}), 1);
}

TEST(PlanTest, LargeMeshesArePlannedOnPaper) {
  const Plan made = plan_on({256, 256}, {1 << 20, 1 << 16}, {S0, S1}, {S1, S0});
  const Summary summary = summarize(made);
  EXPECT_EQ(summary.received, summary.bound);
  const Plan cube = plan_on({16, 16, 16}, {4096, 4096}, {S0, S0, S1}, {S1, R, S0});
  EXPECT_EQ(traffic(cube, 5).received, traffic(cube, 5).bound);
  EXPECT_EQ(transfers(cube.steps[0], 5).receives.empty(), false);
  const Plan gather = plan_on({256, 256}, {1 << 20, 1 << 20}, {S0, R}, {R, R});  // each rank receives 4 TB
  EXPECT_EQ(summarize(gather, 64).received, summarize(gather).received);
}

TEST(PlanTest, WrongArgumentsAreNamed) {
  const auto ranks = grid({2, 2});
  const Layout layout({8, 8}, ranks, {S0, R});
  expect_error("[redistribute]", error_of([&] { plan(layout, Layout({8, 9}, ranks, {S0, R}), 4); }));
  PlanOptions options;
  options.links = {{1, 1}};
  expect_error("1 links are given for a mesh of 2 dims", error_of([&] { plan(layout, layout, 4, options); }));
  options.links = {{1, 1}, {1, 0}};
  expect_error("a link of 1 us and 0 GB/s", error_of([&] { plan(layout, layout, 4, options); }));
  options.links = {{1, 1}, {std::numeric_limits<double>::infinity(), 10}};
  expect_error("a link of inf us and 10 GB/s", error_of([&] { plan(layout, layout, 4, options); }));
  options = {};
  options.memory_cap = -1;
  expect_error("memory_cap is -1 bytes", error_of([&] { plan(layout, layout, 4, options); }));
}

}  // namespace
}  // namespace shardwise::plan_test
