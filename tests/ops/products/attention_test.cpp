// Attention: values and gradients against dense ones; batch and heads stay sharded.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::attention_test {
namespace {

const DenseOptions kClose{.is_exact = false, .max_combinations = 25};

TEST(AttentionTest, WithoutMaskIsDense) {
  const auto attend = [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2]); };
  expect_same_as_dense("attention", attend, {{2, 4, 5, 3}, {2, 4, 6, 3}, {2, 4, 6, 2}}, kClose);
  expect_same_as_dense("attention without batch", attend, {{5, 3}, {6, 3}, {6, 3}}, kClose);
  expect_same_as_dense("attention over no batch", attend, {{0, 4, 5, 3}, {0, 4, 5, 3}, {0, 4, 5, 3}}, kClose);
  const auto scaled = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, false, 0.125);
  };
  expect_same_as_dense("scaled attention", scaled, {{2, 5, 3}, {2, 5, 3}, {2, 5, 3}}, kClose);
}

TEST(AttentionTest, CausalIsDense) {
  const auto attend = [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true); };
  expect_same_as_dense("causal attention", attend, {{2, 3, 5, 4}, {2, 3, 5, 4}, {2, 3, 5, 4}}, kClose);
  expect_same_as_dense("causal attention to a longer past", attend, {{3, 4, 2}, {3, 6, 2}, {3, 6, 2}}, kClose);
}

TEST(AttentionTest, MasksAreDense) {
  const auto added = [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3]); };
  expect_same_as_dense("an added mask", added, {{2, 3, 5, 4}, {2, 3, 6, 4}, {2, 3, 6, 4}, {2, 1, 5, 6}}, kClose);
  const auto kept = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3].detach().gt(0));
  };
  expect_same_as_dense("a mask of bools", kept, {{2, 3, 5, 4}, {2, 3, 6, 4}, {2, 3, 6, 4}, {5, 6}}, kClose);
  const auto blind = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3].detach().ne(t[3].detach()));
  };
  expect_same_as_dense("queries that see nothing", blind, {{2, 5, 4}, {2, 6, 4}, {2, 6, 4}, {5, 6}}, kClose);
}

TEST(AttentionTest, SharedHeadsAreDense) {
  const auto attend = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, false, {}, true);
  };
  expect_same_as_dense("grouped queries", attend, {{2, 6, 5, 3}, {2, 3, 5, 3}, {2, 3, 5, 3}}, kClose);
}

TEST(AttentionTest, BatchHeadsAndQueriesStaySharded) {
  const auto attend = [](const Tensors& t) {
    return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true)};
  };
  const std::vector<Dims> sizes(3, {4, 4, 6, 2});
  const auto both = std::vector<Placement>{Placement::shard(0), Placement::shard(1)};
  EXPECT_EQ(bytes_received(attend, sizes, {2, 2}, {both, both, both}), 0);
  const auto queries = std::vector<Placement>{Placement::shard(2)},
             all = std::vector<Placement>{Placement::replicate()};
  EXPECT_EQ(bytes_received(attend, sizes, {3}, {queries, all, all}), 0);
}

TEST(AttentionTest, MasksAndSharedHeadsSendNothingWhereBatchAndHeadsAreSharded) {
  const std::vector<Placement> both{Placement::shard(0), Placement::shard(1)};
  const std::vector<Placement> all{Placement::replicate(), Placement::replicate()};
  const auto masked = [](const Tensors& t) {
    const at::Tensor query = t[0].detach().requires_grad_();
    const at::Tensor result = at::scaled_dot_product_attention(query, t[1], t[2], t[3]);
    return torch::autograd::grad({result}, {query}, {at::ones_like(result)});
  };
  EXPECT_EQ(bytes_received(masked, {{4, 4, 6, 2}, {4, 4, 5, 2}, {4, 4, 5, 2}, {6, 5}}, {2, 2}, {both, both, both, all}),
            0);
  const auto grouped = [](const Tensors& t) {
    return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true, {}, /*enable_gqa=*/true)};
  };
  EXPECT_EQ(bytes_received(grouped, {{4, 8, 6, 2}, {4, 4, 6, 2}, {4, 4, 6, 2}}, {2, 2}, {both, both, both}), 0);
}

// Queries stay in place; keys and values are gathered.
TEST(AttentionTest, ShardedSequencesGatherKeysAndValuesOnly) {
  const auto attend = [](const Tensors& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2])}; };
  const std::vector<Placement> sequence{Placement::shard(1)};
  const int64_t of_keys = 2 * 6 * 3 * 8;
  EXPECT_LE(bytes_received(attend, {{2, 60, 3}, {2, 6, 3}, {2, 6, 3}}, {3}, {sequence, sequence, sequence}),
            2 * of_keys);
}

TEST(AttentionTest, WrongArgumentsSayTheRightOnes) {
  const auto error = error_of_ranks(2, [](World&) {
    const auto heads = lay_out(at::ones({2, 4, 3}), make_mesh({2}), {Placement::shard(0)});
    at::scaled_dot_product_attention(heads, heads, heads, heads, 0, /*is_causal=*/true);
  });
  expect_error("[aten::scaled_dot_product_attention] got is_causal=True and an attn_mask", error);
  const auto of_groups = error_of_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto queries = lay_out(at::ones({5, 4, 3}), mesh, {Placement::shard(0)}),
               keys = lay_out(at::ones({2, 4, 3}), mesh, {Placement::shard(0)});
    at::scaled_dot_product_attention(queries, keys, keys, {}, 0, false, {}, /*enable_gqa=*/true);
  });
  expect_error("Make the query's number of heads a multiple of the key's", of_groups);
}

}  // namespace
}  // namespace shardwise::attention_test
