// ops/families.h: the operator families, by folder: each has a function register_<family>() in a file of its own. README.md says how to add an operator.
#pragma once

#include "runtime/rules/rule.h"

// clang-format off
/// The families, in the order in which they are registered. Hot operators come last: they need the rules.
#define SHARDWISE_OPERATOR_FAMILIES(EACH)                                                                              \
  /* elementwise/ */ EACH(activations) EACH(copies) EACH(foreach) EACH(item) EACH(loss_scaling)        \
    EACH(pointwise)                                                                                                    \
  /* products/ */ EACH(attention) EACH(attention_operators) EACH(distances) EACH(einsum) EACH(fused_attention)     \
    EACH(grouped_mm) EACH(inference_layers) EACH(linalg) EACH(matmul) EACH(recurrent)                                                   \
  /* reductions/ */ EACH(losses) EACH(nll) EACH(reductions) EACH(scans) EACH(softmax) EACH(var_argmax)                 \
  /* norms/ */ EACH(batch_norm) EACH(group_norm) EACH(layer_norm)                                                      \
  /* shapes/ */ EACH(cat) EACH(diagonals) EACH(flip_roll_repeat) EACH(permutations) EACH(slices) EACH(slice_writes)    \
    EACH(view_copies) EACH(views)                                                                                      \
  /* indexing/ */ EACH(gather) EACH(index) EACH(index_along) EACH(masks) EACH(quantile) EACH(search)                   \
    EACH(sorting)                                                                                 \
  /* spatial/ */ EACH(convolution) EACH(interpolation) EACH(padding) EACH(patches) EACH(pooling)                       \
  /* random/ */ EACH(dropout) EACH(random) EACH(random_values)                                                         \
  /* sparse/ */ EACH(sparse_construction) EACH(sparse_entries) EACH(sparse_reductions)                                 \
  /* across the folders */ EACH(plain_gradients) EACH(hot)
// clang-format on

namespace shardwise {

#define SHARDWISE_DECLARE_FAMILY(family) void register_##family(RuleTable& table);
SHARDWISE_OPERATOR_FAMILIES(SHARDWISE_DECLARE_FAMILY)
#undef SHARDWISE_DECLARE_FAMILY

}  // namespace shardwise
