// What hand-written linear layers do by all-to-alls, as layouts: columns in any rank order, a new rank order in one
// exchange, a row-wise weight with an input sharded by batch, and a result left Partial.
#include "runtime/comm/events.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::linear_patterns_test {
namespace {

/// Integers in float64: sums are exact in any order.
at::Tensor numbers(c10::IntArrayRef sizes, int64_t seed) {
  const int64_t n = c10::multiply_integers(sizes);
  return at::arange(n, at::kLong).mul(7 * seed + 3).remainder(23).sub(9).to(at::kDouble).view(sizes);
}

at::Tensor leaf(const at::Tensor& dense, const MeshPtr& mesh, Placements placements) {
  return lay_out(dense, mesh, std::move(placements)).requires_grad_();
}

const std::vector<std::vector<int64_t>> kOrders{{0, 1, 2, 3}, {2, 0, 1, 3}, {1, 2, 3, 0}, {3, 2, 1, 0}};

TEST(LinearPatternsTest, A1ColumnsComeInTheOrderOfTheWeightWhateverTheRanksOrder) {
  run_ranks(4, [](World&) {
    const at::Tensor x = numbers({5, 6}, 1), w = numbers({10, 6}, 2), b = numbers({10}, 3);
    const at::Tensor dense = at::linear(x, w, b);
    for (const auto& order : kOrders) {
      const MeshPtr mesh = make_mesh({4}, order);
      const at::Tensor y = at::linear(leaf(x, mesh, {Placement::replicate()}), leaf(w, mesh, {Placement::shard(0)}),
                                      leaf(b, mesh, {Placement::shard(0)}));
      EXPECT_EQ(spec_of(y)->placements()[0], Placement::shard(1));
      EXPECT_TRUE(full_tensor(y).equal(dense));
      for (const auto& other : kOrders)
        EXPECT_TRUE(to_local(redistribute(y, make_mesh({4}, other), {Placement::replicate()})).equal(dense));
    }
  });
}

TEST(LinearPatternsTest, A1PiecesOfColumnsInACycleOfRanks) {
  run_ranks(3, [](World&) {
    const MeshPtr mesh = make_mesh({3});
    const at::Tensor x = numbers({4, 6}, 1), w = numbers({7, 6}, 2);
    // Rows [0,2) on rank 2, [2,5) on 0, [5,6) on 1, [6,7) on 2.
    const auto pieces =
        Placement::enumerable({{{0, 0}, {2, 6}, 2}, {{2, 0}, {3, 6}, 0}, {{5, 0}, {1, 6}, 1}, {{6, 0}, {1, 6}, 2}});
    const at::Tensor ours = leaf(x, mesh, {Placement::replicate()}), weight = leaf(w, mesh, {pieces});
    const at::Tensor y = at::linear(ours, weight);
    EXPECT_TRUE(full_tensor(y).equal(at::linear(x, w)));
    const at::Tensor g = numbers({4, 7}, 5);
    const auto grads = torch::autograd::grad({y}, {ours, weight}, {lay_out(g, mesh, {Placement::replicate()})});
    EXPECT_TRUE(full_tensor(grads[0]).equal(g.matmul(w)));
    EXPECT_TRUE(full_tensor(grads[1]).equal(g.t().matmul(x)));
  });
}

TEST(LinearPatternsTest, A2AThreeCycleOfRanksIsOneExchangeThatSendsEachByteOnce) {
  run_ranks(4, [](World& world) {
    const at::Tensor dense = numbers({11, 3}, 1);
    for (const auto& order : kOrders)
      for (const auto& wanted : kOrders) {
        const MeshPtr from = make_mesh({4}, order), to = make_mesh({4}, wanted);
        const at::Tensor x = leaf(dense, from, {Placement::shard(0)});
        CommTrace trace;
        const at::Tensor y = redistribute(x, to, {Placement::shard(0)});
        const bool stays = from->coord() == to->coord();
        EXPECT_EQ(trace.bytes_received(), stays ? 0 : to_local(y.detach()).nbytes());
        EXPECT_EQ(trace.bytes_sent(), stays ? 0 : to_local(x.detach()).nbytes());
        EXPECT_EQ(trace.total_count(), stays ? 0 : 1);
        // Rank order[p] had part p; now wanted[p] has it (its inverse would be another cycle).
        const int64_t place = std::ranges::find(wanted, world.rank()) - wanted.begin();
        EXPECT_TRUE(to_local(y.detach()).equal(dense.split_with_sizes(chunk_sizes(11, 4))[place]));
        const at::Tensor weights = numbers({11, 3}, 2);
        const at::Tensor grad = torch::autograd::grad({y}, {x}, {lay_out(weights, to, {Placement::shard(0)})})[0];
        EXPECT_EQ(spec_of(grad), spec_of(x));
        EXPECT_TRUE(full_tensor(grad).equal(weights));
      }
  });
}

/// x sharded by batch, weight.T by rows: x is exchanged to columns, the products are reduce-scattered by batch.
TEST(LinearPatternsTest, A3RowWiseLinearExchangesItsInputAndScattersTheSum) {
  run_ranks(3, [](World&) {
    const MeshPtr mesh = make_mesh({3}, {1, 2, 0});
    const at::Tensor x = numbers({7, 10}, 1), wt = numbers({10, 5}, 2), g = numbers({7, 5}, 3);
    const at::Tensor ours = leaf(x, mesh, {Placement::shard(0)}), rows = leaf(wt, mesh, {Placement::shard(0)});
    CommTrace trace;
    const at::Tensor columns = redistribute(ours, {Placement::shard(1)});
    const int64_t n_exchange = trace.bytes_received();
    const at::Tensor own = to_local(ours.detach()), own_columns = to_local(columns.detach());
    EXPECT_EQ(n_exchange, own_columns.nbytes() - own_columns.size(1) * own.size(0) * 8);
    const at::Tensor terms = at::matmul(columns, rows);
    EXPECT_EQ(trace.bytes_received(), n_exchange) << "local products";
    EXPECT_EQ(spec_of(terms)->placements()[0], Placement::partial());
    const at::Tensor y = redistribute(terms, {Placement::shard(0)});
    EXPECT_EQ(trace.bytes_received() - n_exchange, 2 * to_local(y.detach()).nbytes()) << "a reduce-scatter";
    EXPECT_TRUE(full_tensor(y.detach()).equal(x.matmul(wt)));

    const auto grads = torch::autograd::grad({y}, {ours, rows}, {lay_out(g, mesh, {Placement::shard(0)})});
    EXPECT_EQ(spec_of(grads[0]), spec_of(ours));
    EXPECT_EQ(spec_of(grads[1]), spec_of(rows));
    EXPECT_TRUE(full_tensor(grads[0]).equal(g.matmul(wt.t()))) << "the exchange is inside autograd";
    EXPECT_TRUE(full_tensor(grads[1]).equal(x.t().matmul(g)));
  });
}

TEST(LinearPatternsTest, A4StoppingAtPartialCountsTheBiasOnce) {
  run_ranks(3, [](World&) {
    const MeshPtr mesh = make_mesh({3});
    const at::Tensor x = numbers({7, 10}, 1), w = numbers({5, 10}, 2), b = numbers({5}, 3), g = numbers({7, 5}, 4);
    const at::Tensor ours = leaf(x, mesh, {Placement::shard(0)}), columns = leaf(w, mesh, {Placement::shard(1)}),
                     bias = leaf(b, mesh, {Placement::replicate()});
    const at::Tensor moved = redistribute(ours, {Placement::shard(1)});
    CommTrace trace;
    const at::Tensor y = at::linear(moved, columns, bias);
    EXPECT_EQ(trace.total_count(), 0);
    EXPECT_EQ(spec_of(y)->placements()[0], Placement::partial());
    EXPECT_TRUE(full_tensor(y.detach()).equal(at::linear(x, w, b)));
    const auto grads = torch::autograd::grad({y}, {ours, columns, bias}, {lay_out(g, mesh, {Placement::replicate()})});
    EXPECT_TRUE(full_tensor(grads[0]).equal(g.matmul(w)));
    EXPECT_TRUE(full_tensor(grads[1]).equal(g.t().matmul(x)));
    EXPECT_TRUE(full_tensor(grads[2]).equal(g.sum(0))) << "once, not once per rank";
  });
}

}  // namespace
}  // namespace shardwise::linear_patterns_test
