// This rank's part, taken out and put in: what is written to it, and what one rank may read alone.
#include "runtime/api/dtensor.h"

#include "runtime/api/from_local.h"
#include "runtime/api/to_local.h"
#include "runtime/comm/events.h"
#include "runtime/tensor/dtensor_impl.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace shardwise::to_local_test {
namespace {

/// Each takes a part of a distributed tensor into its hands.
const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> kReaders{
    {"to_local", [](const at::Tensor& x) { return to_local(x); }},
    {"to_pieces", [](const at::Tensor& x) { return to_pieces(x)[0]; }},
    {"to_local of detached", [](const at::Tensor& x) { return to_local(x.detach()); }},
    {"to_local of another view", [](const at::Tensor& x) { return to_local(redistribute(x, {Placement::shard(0)})); }},
    {"to_local of a flat view", [](const at::Tensor& x) { return to_local(x.view(-1)); }},
};

TEST(ToLocalTest, AWriteToALocalTensorThatAutogradNeedsIsAnError) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    for (const auto& [name, reader] : kReaders)
      for (const bool records : {true, false})
        for (const bool is_read_before : {true, false}) {
          SCOPED_TRACE(fmt::format("{}, grad mode {}, read before {}", name, records, is_read_before));
          const at::Tensor x = lay_out(at::ones({4, 2}, at::kDouble), mesh, {Placement::shard(0)}).requires_grad_();
          const at::Tensor y = x * 1;
          if (is_read_before) reader(y);
          const at::Tensor z = (y * y).sum();
          {
            const at::AutoGradMode mode(records);
            reader(y).mul_(2);
          }
          EXPECT_TRUE(at::equal(full_tensor(y.detach()), at::full({4, 2}, 2.0, at::kDouble)));
          EXPECT_THROW(z.backward(), c10::Error);
        }
  });
}

TEST(ToLocalTest, AReadLocalTensorLeavesTheBackwardAlone) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    for (const auto& [name, reader] : kReaders) {
      const at::Tensor x = lay_out(at::ones({4, 2}, at::kDouble), mesh, {Placement::shard(0)}).requires_grad_();
      const at::Tensor y = x * 3;
      const at::Tensor z = (y * y).sum();
      reader(y).sum().item<double>();
      z.backward();
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::full({4, 2}, 18.0, at::kDouble))) << name;
    }
  });
}

TEST(ToLocalTest, WithoutGradModeTheLocalTensorIsTheSameOne) {
  run_ranks(2, [](World&) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = lay_out(at::ones({4, 2}), make_mesh({2}), {Placement::shard(0)});
    EXPECT_TRUE(to_local(x).is_same(to_local(x)));
  });
}

TEST(ToLocalTest, InInferenceModeWritesNeedNoCount) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor outside = at::ones({2, 2});
    const c10::InferenceMode inference;
    const at::Tensor x = lay_out(at::ones({4, 2}), mesh, {Placement::shard(0)});
    to_local(x).mul_(2);
    EXPECT_TRUE(at::equal(full_tensor(x), at::full({4, 2}, 2.0)));
    const at::Tensor y = from_local(outside, mesh, {Placement::shard(0)});
    to_local(y).mul_(3);
    EXPECT_TRUE(at::equal(outside, at::full({2, 2}, 3.0)));
  });
}

TEST(FromLocalTest, AWriteToTheGivenTensorCountsAsOneToTheDistributedOne) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor x = lay_out(at::ones({4, 2}), mesh, {Placement::shard(0)}).requires_grad_();
    const at::Tensor local = at::ones({2, 2});
    const at::Tensor y = from_local(local, mesh, {Placement::shard(0)});
    const at::Tensor z = (x * y).sum();
    local.mul_(2);
    EXPECT_THROW(z.backward(), c10::Error);
    const at::Tensor w = (x * y).sum();
    const int64_t before = local._version();
    y.mul_(2);
    EXPECT_EQ(local._version(), before + 1);
    EXPECT_THROW(w.backward(), c10::Error);
  });
}

TEST(RedistributeManyTest, ATensorThatHasThePlacementsAlreadyGivesAView) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor x = lay_out(at::ones({4, 2}), mesh, {Placement::shard(0)}).requires_grad_();
    const at::Tensor y = x * 1, z = x * 2;
    const auto moved = redistribute_many({y, z}, {{Placement::shard(0)}, {Placement::replicate()}});
    const at::Tensor squares = (moved[0] * moved[0]).sum() + moved[1].sum();
    EXPECT_EQ(moved[0]._version(), y._version());
    y.mul_(2);
    EXPECT_EQ(moved[0]._version(), y._version());
    EXPECT_TRUE(at::equal(full_tensor(moved[0].detach()), at::full({4, 2}, 2.0)));
    EXPECT_THROW(squares.backward(), c10::Error);
  });
}

TEST(StaleViewTest, OneRankReadsItAloneAndNobodyWaits) {
  run_ranks(
      2,
      [](World& world) {
        const auto mesh = make_mesh({2});
        const at::Tensor base = lay_out(at::ones({6, 6}), mesh, {Placement::shard(0)});
        const at::Tensor row = base.select(0, 3), part = row.narrow(0, 1, 3);
        base.mul_(2);
        if (world.rank() == 0) {
          const CommTrace trace;
          for (const at::Tensor& view : {row, part}) {
            EXPECT_TRUE(maybe_dtensor(view)->is_stale());
            EXPECT_THROW(to_local(view), c10::ValueError);
            EXPECT_THROW(to_pieces(view), c10::ValueError);
            EXPECT_THROW(detached_pieces(view, "pickle"), c10::ValueError);
            EXPECT_EQ(view.storage().nbytes(), view.variable_data().storage().nbytes());
            EXPECT_TRUE(maybe_dtensor(view.variable_data())->is_stale());
          }
          EXPECT_EQ(trace.total_count(), 0);
        }
        EXPECT_TRUE(at::equal(full_tensor(part), at::full({3}, 2.0)));
        EXPECT_TRUE(at::equal(full_tensor(row.clone()), at::full({6}, 2.0)));
        EXPECT_FALSE(maybe_dtensor(row)->is_stale());
        EXPECT_TRUE(at::equal(to_local(row), at::full(to_local(row).sizes(), 2.0)));
      },
      std::chrono::seconds(20));
}

TEST(StaleViewTest, OfOneRankAloneIsReadAgainAtOnce) {
  run_ranks(2, [](World& world) {
    const auto mesh = make_mesh({1}, {0});
    if (world.rank() == 1) return;
    const at::Tensor base = lay_out(at::ones({6, 6}), mesh, {Placement::shard(0)});
    const at::Tensor view = base.as_strided({3}, {7}, 1);
    base.mul_(2);
    EXPECT_TRUE(at::equal(to_local(view), at::full({3}, 2.0)));
  });
}

TEST(ToLocalTest, PiecesOfAnotherNumberOrDtypeAreErrors) {
  run_ranks(2, [](World& world) {
    const auto pieces = Placement::enumerable({{{0, 0}, {1, 2}, 0}, {{1, 0}, {1, 2}, 1}, {{2, 0}, {2, 2}, 0}});
    const at::Tensor x = lay_out(at::ones({4, 2}), make_mesh({2}), {pieces});
    const auto error_of = [](const auto& call) {
      try {
        call();
      } catch (const c10::ValueError& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string();
    };
    const std::vector<at::Tensor> one{at::ones({1, 2})}, whole_numbers{at::ones({1, 2}, at::kInt)};
    if (world.rank() == 0) {
      expect_error("[to_piece] rank 0 holds 2 pieces of", error_of([&] { to_piece(x); }));
      expect_error("[from_local] rank 0 gives 1 pieces, but", error_of([&] { from_pieces(one, spec_of(x)); }));
    } else {
      expect_error("[from_local] piece 0 is Int, the tensor Float. Use one dtype",
                   error_of([&] { from_pieces(whole_numbers, spec_of(x)); }));
    }
  });
}

TEST(StaleViewTest, OfSeveralThreadsOneFetchesTheValues) {
  run_ranks(
      2,
      [](World&) {
        const auto mesh = make_mesh({2});
        const at::Tensor base = lay_out(at::zeros({6, 6}), mesh, {Placement::shard(0)});
        const at::Tensor row = base.select(0, 4);
        for (int i = 1; i <= 50; ++i) {
          base.add_(1);
          std::vector<double> sums(3);
          std::vector<std::thread> users;
          for (double& sum : sums)
            users.emplace_back([&] {
              maybe_dtensor(row)->refresh();
              sum = maybe_dtensor(row)->shards().at(0).sum().item<double>();
            });
          for (std::thread& user : users) user.join();
          const double expected = to_local(row).sum().item<double>();
          EXPECT_EQ(sums, std::vector<double>(3, expected));
          EXPECT_EQ(row.sum().item<double>(), 6.0 * i);
        }
      },
      std::chrono::seconds(20));
}

}  // namespace
}  // namespace shardwise::to_local_test
