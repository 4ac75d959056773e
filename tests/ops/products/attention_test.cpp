// Attention: values and gradients against dense ones; batch and heads stay sharded.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

namespace shardwise::attention_test {
namespace {

const DenseOptions kClose{.is_exact = false, .max_combinations = 25};
const DenseOptions kFewer{.is_exact = false, .max_combinations = 8};  // of tests with many cases

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

// Operands of 4 dims whose values have as many features as the queries: torch picks its flash kernel.
const std::vector<Dims> kFused{{2, 4, 7, 4}, {2, 4, 6, 4}, {2, 4, 6, 4}};

std::vector<Dims> fused_with(const Dims& mask) { return {kFused[0], kFused[1], kFused[2], mask}; }

/// The name of the node that made the result of attention over [2, 4, 7, 4], of queries `laid_out`.
std::string node_of_attention(const Placements& laid_out) {
  const auto mesh = make_mesh({2});
  const auto leaf = [&](Placements placements) {
    return lay_out(at::ones({2, 4, 6, 4}), mesh, std::move(placements)).requires_grad_();
  };
  return at::scaled_dot_product_attention(leaf(laid_out), leaf({Placement::replicate()}),
                                          leaf({Placement::replicate()}))
      .grad_fn()
      ->name();
}

TEST(AttentionTest, FusedIsDense) {
  const auto attend = [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2]); };
  expect_same_as_dense("fused attention", attend, kFused, kClose);
  expect_same_as_dense("fused attention over no batch", attend, {{0, 4, 5, 4}, {0, 4, 5, 4}, {0, 4, 5, 4}}, kClose);
  expect_same_as_dense("fused attention of no query", attend, {{2, 4, 0, 4}, {2, 4, 5, 4}, {2, 4, 5, 4}}, kClose);
  expect_same_as_dense("fused attention to no key", attend, {{2, 4, 5, 4}, {2, 4, 0, 4}, {2, 4, 0, 4}}, kClose);
  expect_same_as_dense("fused attention of one head", attend, {{1, 1, 1, 4}, {1, 1, 9, 4}, {1, 1, 9, 4}}, kClose);
  const auto scaled = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, false, 0.125);
  };
  expect_same_as_dense("scaled fused attention", scaled, kFused, kClose);
}

TEST(AttentionTest, FusedCausalIsDenseWhereQueriesAreSharded) {
  const auto attend = [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true); };
  for (const int64_t n_queries : {1, 6, 13})
    for (const int64_t n_keys : {1, 6, 13})
      expect_same_as_dense("fused causal attention", attend,
                           {{1, 2, n_queries, 4}, {1, 2, n_keys, 4}, {1, 2, n_keys, 4}}, kFewer);
  // Longer than the kernel's blocks of queries and keys.
  expect_same_as_dense("long causal attention", attend, {{1, 1, 1100, 2}, {1, 1, 1100, 2}, {1, 1, 1100, 2}}, kFewer);
}

TEST(AttentionTest, FusedWithMasksIsDense) {
  const auto added = [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3].detach()); };
  const auto kept = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3].detach().gt(-32));
  };
  for (const Dims& mask :
       std::vector<Dims>{{7, 6}, {7, 1}, {1, 6}, {2, 1, 7, 6}, {1, 4, 7, 6}, {2, 4, 1, 6}, {2, 4, 7, 1}}) {
    expect_same_as_dense("a fused added mask", added, fused_with(mask), kFewer);
    expect_same_as_dense("a fused mask of bools", kept, fused_with(mask), kFewer);
  }
  const auto learnt = [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3]); };
  expect_same_as_dense("a mask with a gradient", learnt, fused_with({7, 6}), kFewer);
  const auto blind = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3].detach().ne(t[3].detach()));
  };
  expect_same_as_dense("fused queries that see nothing", blind, fused_with({7, 6}), kFewer);
}

TEST(AttentionTest, FusedSharedHeadsAreDense) {
  const auto attend = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true, {}, true);
  };
  for (const int64_t n_shared : {1, 2, 3, 6})
    expect_same_as_dense("fused grouped queries", attend, {{2, 6, 5, 4}, {2, n_shared, 5, 4}, {2, n_shared, 5, 4}},
                         kClose);
}

TEST(AttentionTest, FusedOperatorsThemselvesAreDense) {
  const auto attend = [](const Tensors& t) {
    const auto [output, logsumexp] =
        at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2], 0, /*is_causal=*/true);
    return Tensors{output, logsumexp.detach()};
  };
  expect_same_as_dense("flash attention", attend, kFused, kClose);
  const auto masked = [](const Tensors& t) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2], 0, true, t[3].detach()));
  };
  expect_same_as_dense("masked causal flash attention", masked, fused_with({7, 6}), kClose);
  const auto backward = [](const Tensors& t) {
    const Tensors given{t[0].detach(), t[1].detach(), t[2].detach()};
    const auto [output, logsumexp] =
        at::_scaled_dot_product_flash_attention_for_cpu(given[0], given[1], given[2], 0, true);
    const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        t[3].detach(), given[0], given[1], given[2], output, logsumexp, 0, true);
    return Tensors{of_query, of_key, of_value};
  };
  expect_same_as_dense("flash attention's backward", backward, fused_with({2, 4, 7, 4}), kClose);
  EXPECT_EQ(to_string(rule("shardwise::fused_attention")), "attention");
}

TEST(AttentionTest, TorchPicksTheKernel) {
  run_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const auto x = lay_out(at::ones({2, 4, 6, 4}), mesh, {Placement::shard(0)});
    EXPECT_EQ(at::_fused_sdp_choice(x, x, x), static_cast<int64_t>(at::SDPBackend::flash_attention));
    EXPECT_EQ(at::_fused_sdp_choice(x, x, x, {}, /*dropout_p=*/0.5), static_cast<int64_t>(at::SDPBackend::math));
    const auto node = node_of_attention({Placement::shard(2)});
    EXPECT_EQ(node, "ScaledDotProductFlashAttentionForCpuBackward0");
  });
  at::globalContext().setSDPUseFlash(false);
  run_ranks(2, [](World&) {
    EXPECT_NE(node_of_attention({Placement::shard(2)}), "ScaledDotProductFlashAttentionForCpuBackward0");
  });
  at::globalContext().setSDPUseFlash(true);
}

TEST(AttentionTest, FusedSendsNothingWhereQueriesAreShardedButGradientsOfKeys) {
  const std::vector<Placement> queries{Placement::shard(2)}, all{Placement::replicate()};
  const auto attend = [](const Tensors& t) {
    const at::Tensor query = t[0].detach().requires_grad_(), key = t[1].detach().requires_grad_();
    const at::Tensor result = at::scaled_dot_product_attention(query, key, t[2], {}, 0, /*is_causal=*/true);
    return torch::autograd::grad({result}, {query}, {at::ones_like(result)});
  };
  EXPECT_EQ(bytes_received(attend, {{2, 4, 6, 4}, {2, 4, 6, 4}, {2, 4, 6, 4}}, {3}, {queries, all, all}), 0);
  const auto masked = [](const Tensors& t) {
    const at::Tensor query = t[0].detach().requires_grad_();
    const auto [result, logsumexp] =
        at::_scaled_dot_product_flash_attention_for_cpu(query, t[1], t[2], 0, /*is_causal=*/true, t[3]);
    return torch::autograd::grad({result}, {query}, {at::ones_like(result)});
  };
  EXPECT_EQ(bytes_received(masked, {{2, 4, 6, 4}, {2, 4, 6, 4}, {2, 4, 6, 4}, {6, 6}}, {3}, {queries, all, all, all}),
            0);
  const auto grouped = [](const Tensors& t) {
    return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true, {}, /*enable_gqa=*/true)};
  };
  const std::vector<Placement> heads{Placement::shard(1)};
  EXPECT_EQ(bytes_received(grouped, {{2, 6, 6, 4}, {2, 1, 6, 4}, {2, 1, 6, 4}}, {3}, {heads, all, all}), 0);
  EXPECT_EQ(bytes_received(grouped, {{2, 6, 6, 4}, {2, 3, 6, 4}, {2, 3, 6, 4}}, {3}, {heads, heads, all}), 0);
}

TEST(AttentionTest, FewQueriesOfManyShardedKeysSendResults) {
  const auto attend = [](const Tensors& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2])}; };
  const std::vector<Placement> keys{Placement::shard(2)}, all{Placement::replicate()};
  EXPECT_LE(bytes_received(attend, {{1, 4, 1, 8}, {1, 4, 600, 8}, {1, 4, 600, 8}}, {3}, {all, keys, keys}),
            4 * (8 + 2) * 8 * 4);
  expect_same_as_dense(
      "one query of many keys", [&](const Tensors& t) { return attend(t)[0]; },
      {{1, 2, 1, 4}, {1, 2, 90, 4}, {1, 2, 90, 4}}, kClose);
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
  const auto flash = [](const Dims& key, const Dims& mask) {
    return error_of_ranks(2, [&](World&) {
      const auto mesh = make_mesh({2});
      const auto ones = [&](const Dims& sizes) { return lay_out(at::ones(sizes), mesh, {Placement::replicate()}); };
      const auto keys = ones(key);
      at::_scaled_dot_product_flash_attention_for_cpu(ones({2, 4, 3, 5}), keys, keys, 0, false, ones(mask));
    });
  };
  expect_error(
      "query, key and value of Float [2, 4, 3, 5], Float [2, 3, 6, 5] and Float [2, 3, 6, 5] do not fit each other",
      flash({2, 3, 6, 5}, {3, 6}));
  expect_error("a mask of Float [3, 5] does not broadcast to the scores' shape [2, 4, 3, 6]",
               flash({2, 4, 6, 5}, {3, 5}));
}

}  // namespace
}  // namespace shardwise::attention_test
