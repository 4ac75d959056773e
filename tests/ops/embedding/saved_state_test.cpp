// What lookups keep for their backward is freed by it, not only with the graph.
#include "ops/embedding/row_optimizer.h"
#include "tests/support/freed_memory.h"
#include "tests/support/layouts.h"
#include "tests/support/lookups.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::saved_state_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0), kColumns = Placement::shard(1);

/// Calls `check(table, ids)` on three ranks, for tables and ids of several layouts and each exchange.
void on_each_layout(const std::function<void(const at::Tensor&, const at::Tensor&, const std::string&)>& check) {
  run_ranks(3, [&](World&) {
    const auto mesh = make_mesh({3});
    for (const LookupExchange exchange : kExchanges)
      for (const Placement& of_table : {kRows, kColumns, kReplicate})
        for (const Placement& of_ids : {kRows, kReplicate}) {
          const LookupScope scope({.exchange = exchange});
          const auto table = lay_out(at::rand({10, 6}), mesh, {of_table}).requires_grad_();
          const auto ids = lay_out(at::tensor({7, 2, 7, 9, 0, 4}), mesh, {of_ids});
          check(table, ids,
                fmt::format("{} {} {}", static_cast<int>(exchange), to_string(of_table), to_string(of_ids)));
        }
  });
}

/// The bytes that the graph of `result` still holds after its backward.
int64_t held_after_backward(at::Tensor result, const FreedMemory& freed) {
  const at::Tensor values = result.detach();
  result.sum().backward();
  const int64_t before = freed.n_bytes();
  result.reset();
  return freed.n_bytes() - before;
}

TEST(SavedStateTest, LookupsHoldNothingAfterTheirBackward) {
  on_each_layout([](const at::Tensor& table, const at::Tensor& ids, const std::string& layout) {
    const FreedMemory freed;
    EXPECT_EQ(held_after_backward(at::embedding(table, ids, 2, /*scale_grad_by_freq=*/true), freed), 0) << layout;
  });
}

TEST(SavedStateTest, PooledLookupsHoldNothingAfterTheirBackward) {
  on_each_layout([](const at::Tensor& table, const at::Tensor& ids, const std::string& layout) {
    const auto mesh = spec_of(table)->mesh();
    const auto weights = lay_out(at::rand({6}), mesh, spec_of(ids)->placements().vec()).requires_grad_();
    for (const int64_t mode : {0, 1, 2}) {
      const FreedMemory freed;
      const auto offsets = at::tensor({0, 2, 4});
      auto result = std::get<0>(at::embedding_bag(table, ids, offsets, false, mode, false,
                                                  mode == 0 ? weights : std::optional<at::Tensor>()));
      EXPECT_EQ(held_after_backward(std::move(result), freed), 0) << layout << " mode " << mode;
    }
  });
}

TEST(SavedStateTest, FusedOptimizersHoldNothingAfterTheirStep) {
  on_each_layout([](const at::Tensor& table, const at::Tensor& ids, const std::string& layout) {
    const auto optimizer =
        std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.method = RowOptimizer::Method::kAdagrad});
    fuse_optimizer(table, optimizer);
    const FreedMemory freed;
    EXPECT_EQ(held_after_backward(at::embedding(table, ids), freed), 0) << layout;
  });
}

TEST(SavedStateTest, ARetainedGraphGivesTheSameGradientAgain) {
  on_each_layout([](const at::Tensor& table, const at::Tensor& ids, const std::string& layout) {
    const auto loss = at::embedding(table, ids).square().sum();
    loss.backward({}, /*retain_graph=*/true);
    const auto first = full_tensor(table.grad()).clone();
    table.mutable_grad().reset();
    loss.backward();
    EXPECT_TRUE(full_tensor(table.grad()).equal(first)) << layout;
  });
}

}  // namespace
}  // namespace shardwise::saved_state_test
