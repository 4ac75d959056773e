#include "runtime/api/dtensor.h"
#include "tests/support/dense.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::factories_test {
namespace {

TEST(FactoriesTest, RulesReadOnlyShapes) {
  EXPECT_EQ(to_string(rule("aten::zeros_like")), "pointwise shape only");
  EXPECT_EQ(to_string(rule("aten::new_full")), "pointwise sizes(size) shape only");
}

TEST(FactoriesTest, FilledLikeAnother) {
  const auto like = [](const Tensors& t) {
    return Tensors{at::zeros_like(t[0]),
                   at::ones_like(t[0], at::kLong),
                   at::full_like(t[0], 3),
                   t[0].new_zeros({5, 4}),
                   t[0].new_ones({2, 7}),
                   t[0].new_full({5, 4}, 2),
                   t[0].new_empty({5, 4}).zero_(),
                   t[0].new_empty_strided({5, 4}, {1, 5}).fill_(3),
                   t[0].new_zeros({3})};
  };
  expect_same_as_dense("factories", like, {{5, 4}});
  expect_same_as_dense("factories of no rows", like, {{0, 4}});
}

TEST(FactoriesTest, EqualSizesKeepTheLayoutAndOthersAreReplicated) {
  run_ranks(3, [](World&) {
    auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{3}, {0, 1, 2}});
    const Placement uneven = Placement::shard(0, {0, 1, 4});
    const at::Tensor tensor = full({5, 4}, 1, mesh, {uneven}, at::kDouble);
    EXPECT_EQ(to_string(spec_of(at::empty_like(tensor))->placements()), to_string(Placements{uneven}));
    EXPECT_EQ(to_string(spec_of(tensor.new_zeros({5, 4}))->placements()), to_string(Placements{uneven}));
    EXPECT_EQ(to_string(spec_of(tensor.new_zeros({4, 5}))->placements()), "[Replicate()]");
    EXPECT_EQ(tensor.new_empty_strided({5, 4}, {1, 5}).strides(), (at::IntArrayRef{1, 5}));
  });
}

}  // namespace
}  // namespace shardwise::factories_test
