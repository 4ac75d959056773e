// ops/products/attention_kernels.h: torch's fused attention kernels on this rank's pieces: some of the queries, all keys; no messages.
#pragma once

#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise {

struct AttentionCall {
  at::SDPBackend backend = at::SDPBackend::flash_attention;
  std::optional<at::Tensor> mask;  // terms to add to the scores, broadcast to [batch, heads, queries, keys]
  double dropout_p = 0;
  bool is_causal = false;  // query i of all queries sees the keys up to i
  std::optional<double> scale;
  int64_t first_row = 0;  // where the queries at hand begin among all
  uint64_t seed = 0;      // of the weights that are dropped out
};

/// `output` is [batch, heads, queries, features]. `logsumexp` of a query's scores is
/// [batch, heads, queries], without the padding of torch's memory-efficient kernel. `random`, from which the backward draws again, is
/// [batch, heads, queries, 2] without memory of its own; undefined without dropout.
struct Attended {
  at::Tensor output, logsumexp, random;
};

/// Query [batch, heads, queries, features], key and value [batch, shared heads, keys, features]; any of the sizes may be 0.
/// Memory: linear in the numbers of queries and keys. Causal queries that begin at `first_row` cost no more than the keys that they see: these
/// are attended to in two parts, those before the first row, and those of the rows, and weighed by their logsumexp (Liu et al., Ring Attention
/// with Blockwise Transformers, 2023). With a mask or dropout too they take one call, whose mask is of their number times that of these keys,
/// unless the kernel itself may begin at any row.
Attended attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const AttentionCall& call);

/// `mask` is undefined unless asked for.
struct AttentionGradients {
  at::Tensor query, key, value, mask;
};
AttentionGradients attend_backward(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const Attended& attended, const AttentionCall& call,
                                   bool with_mask);

}  // namespace shardwise
