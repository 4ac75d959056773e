// ops/products/attention_kernels.h: torch's fused attention kernels on this rank's pieces: some of the queries, all keys; no messages.
#pragma once

#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise {

/// True for a tensor on the CPU, and for one on meta in a program that is planned for the CPU.
bool takes_cpu_kernels(const at::Tensor& tensor);

struct AttentionCall {
  at::SDPBackend backend = at::SDPBackend::flash_attention;
  std::optional<at::Tensor> mask;  // terms added to the scores; broadcasts to [batch, heads, queries, keys]
  double dropout_p = 0;
  bool is_causal = false;  // query i, counted in the whole tensor, sees the keys up to i
  std::optional<double> scale;
  int64_t first_row = 0;  // the first of this rank's queries, counted in the whole tensor
  uint64_t seed = 0;      // of dropout
};

/// `output` is [batch, heads, queries, features]. `logsumexp`, of the scores of each query, is [batch, heads, queries], without the padding of
/// torch's memory-efficient kernel. `random` lets the backward draw the same numbers: [batch, heads, queries, 2] without memory of its own; undefined
/// without dropout.
struct Attended {
  at::Tensor output, logsumexp, random;
};

/// Query [batch, heads, queries, features], key and value [batch, shared heads, keys, features]; any of the sizes may be 0.
/// Memory: linear in the numbers of queries and keys. Causal queries that begin at `first_row` cost only the keys that they see. The kernel is called
/// twice, for the keys before the first row and for the keys of the rows themselves, and the results are weighed by their logsumexp (Liu et al., Ring
/// Attention with Blockwise Transformers, 2023). With a mask or dropout as well, one call with a mask of [queries, keys seen] replaces the two calls,
/// unless the kernel itself can begin at any row.
Attended attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const AttentionCall& call);

/// `mask` is undefined unless requested.
struct AttentionGradients {
  at::Tensor query, key, value, mask;
};
AttentionGradients attend_backward(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const Attended& attended, const AttentionCall& call,
                                   bool with_mask);

}  // namespace shardwise
