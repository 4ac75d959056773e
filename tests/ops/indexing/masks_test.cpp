// nonzero, masked_select and masked_scatter against dense ones, and what they send.
#include "runtime/comm/events.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::masks_test {
namespace {

const Placement kReplicate = Placement::replicate(), kRows = Placement::shard(0);

using Indices = c10::List<std::optional<at::Tensor>>;

at::Tensor mask_of(const Dims& sizes) {
  return at::arange(c10::multiply_integers(sizes)).mul(7).remainder(5).lt(2).view(sizes);
}

TEST(MasksTest, NonzeroSelectAndScatterAreDense) {
  // self, mask
  const std::vector<std::pair<Dims, Dims>> cases = {{{7}, {7}},    {{5, 3}, {5, 3}},       {{5, 3}, {5, 1}},
                                                    {{3}, {2, 3}}, {{2, 3, 2}, {2, 3, 2}}, {{1, 4}, {1, 4}}};
  run_ranks(4, [&](World&) {
    const auto line = make_mesh({4}, {3, 1, 0, 2}), grid = make_mesh({2, 2}, {3, 1, 0, 2});
    std::mt19937 random(5);
    for (const auto& [sizes, mask_sizes] : cases)
      for (int round = 0; round < 20; ++round) {
        const MeshPtr& mesh = round % 2 ? line : grid;
        const auto numbers = at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes);
        const auto dense = numbers.clone().requires_grad_(), mask = mask_of(mask_sizes);
        const auto dense_source = at::arange(40, at::kDouble).neg().requires_grad_();
        const auto self = lay_out(numbers, mesh, random_placements(sizes, mesh->grid(), random)).requires_grad_();
        const auto own = lay_out(mask, mesh, random_placements(mask_sizes, mesh->grid(), random, false));
        const auto source = lay_out(dense_source.detach(), mesh, random_placements({40}, mesh->grid(), random));
        source.requires_grad_();

        EXPECT_TRUE(full_tensor(own.nonzero()).equal(mask.nonzero()));
        const auto selected = at::masked_select(self, own), expected = at::masked_select(dense, mask);
        EXPECT_TRUE(full_tensor(selected).equal(expected));
        const auto filled = at::masked_fill(self, own, -3), filled_dense = at::masked_fill(dense, mask, -3);
        EXPECT_TRUE(full_tensor(filled).equal(filled_dense));
        const auto written = at::masked_scatter(self, own, source),
                   theirs = at::masked_scatter(dense, mask, dense_source);
        EXPECT_TRUE(full_tensor(written).equal(theirs));
        (selected.square().sum() + filled.square().sum() + self.square().sum()).backward();
        (expected.square().sum() + filled_dense.square().sum() + dense.square().sum()).backward();
        EXPECT_TRUE(full_tensor(self.grad()).equal(dense.grad()));
      }
  });
}

TEST(MasksTest, NonzeroOfShardedRowsIsShardedByTheCountOfEachRank) {
  run_ranks(3, [](World& world) {
    const auto mesh = make_mesh({3}, {1, 2, 0});
    const auto places = lay_out(at::tensor({0, 1, 1, 0, 0, 1, 1, 1}).gt(0), mesh, {kRows}).nonzero();
    EXPECT_EQ(to_string(spec_of(places)->placements()), "[Shard(0, sizes=[2, 1, 2])]") << world.rank();
    EXPECT_TRUE(full_tensor(places).equal(at::tensor({1, 2, 5, 6, 7}, at::kLong).unsqueeze(1)));
  });
}

TEST(MasksTest, SelfAndMaskShardedAlikeSelectLocally) {
  run_ranks(4, [](World&) {
    const auto mesh = make_mesh({2, 2}, {3, 1, 0, 2});
    const auto numbers = at::arange(60, at::kDouble).view({2, 10, 3});
    const Placement rows = Placement::shard(1, {7, 3}), columns = Placement::shard(2);
    for (const Dims& mask_sizes : {Dims{10}, Dims{10, 3}}) {
      const auto dense = numbers.clone().requires_grad_(), mask = mask_of(mask_sizes);
      const auto of_columns = mask_sizes.size() == 1 ? columns : kReplicate;
      const auto self = lay_out(numbers, mesh, {of_columns, rows}).requires_grad_();
      // Sharding a replicated mask sends nothing.
      const auto of_mask = mask_sizes.size() == 1 ? Placement::shard(0, {7, 3}) : kReplicate;
      const auto own = lay_out(mask, mesh, {kReplicate, of_mask});
      Indices ours, theirs;
      ours.resize(2);
      theirs.resize(2);
      ours.set(1, own);
      theirs.set(1, mask);
      CommTrace trace;
      const auto found = at::index(self, ours), expected = at::index(dense, theirs);
      EXPECT_TRUE(spec_of(found)->placements()[1].is_shard(1));
      const auto grad = torch::autograd::grad({found.square()}, {self}, {at::ones_like(found)}, true, true)[0];
      EXPECT_LE(trace.bytes_received(), 1024);  // counts, in one message
      EXPECT_EQ(spec_of(grad)->placements(), spec_of(self)->placements());
      const auto theirs_grad =
          torch::autograd::grad({expected.square()}, {dense}, {at::ones_like(expected)}, true, true)[0];
      EXPECT_TRUE(full_tensor(found).equal(expected));
      EXPECT_TRUE(full_tensor(grad).equal(theirs_grad));
      const auto second = torch::autograd::grad({grad.mul(grad).sum()}, {self})[0];
      const auto theirs_second = torch::autograd::grad({theirs_grad.mul(theirs_grad).sum()}, {dense})[0];
      EXPECT_TRUE(full_tensor(second).equal(theirs_second));
    }
  });
}

TEST(MasksTest, RanksOutsideTheMeshGetAnError) {
  const std::string error = error_of_ranks(3, [](World& world) {
    const auto mesh = make_mesh({2}, {0, 1});
    const auto mask = lay_out(at::ones({4}, at::kBool), mesh, {kReplicate});
    if (world.rank() == 2) mask.nonzero();
  });
  expect_error("[aten::nonzero] returns a result that depends on values, which rank 2 does not have", error);
}

}  // namespace
}  // namespace shardwise::masks_test
