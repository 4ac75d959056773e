// ops/products/attention.cpp: attention as matrix products and a softmax: batch, heads and queries stay sharded.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace shardwise {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Each head `n` times in a row: n query heads share one key and value head.
at::Tensor repeat_heads(const at::Tensor& heads, int64_t n) {
  if (n == 1) return heads;
  Dims sizes(heads.sizes());
  sizes.insert(sizes.end() - 2, n);
  return heads.unsqueeze(-3).expand(sizes).flatten(-4, -3);
}

/// True where a query may attend to a key: up to its own position. Replicated.
at::Tensor causal_mask(const at::Tensor& scores) {
  const SpecPtr& spec = spec_of(scores);
  const auto options = at::TensorOptions().dtype(at::kBool).device(scores.device());
  const c10::IntArrayRef sizes = scores.sizes().slice(scores.dim() - 2);
  std::vector<at::Tensor> pieces;
  if (spec->is_member()) pieces.push_back(at::ones(sizes, options).tril());
  return from_pieces(std::move(pieces), Spec::intern(spec->mesh(), sizes, Placements(spec->placements().size()),
                                                     row_major_strides(sizes), at::kBool));
}

/// An attention mask, of bools or of terms to add to the scores, and which queries it masks out wholly, [..., 1].
struct Mask {
  at::Tensor values, is_blind;
};

/// A softmax over no key is NaN: wholly masked queries attend to all keys, and their results are dropped.
Mask without_blind_rows(const at::Tensor& mask) {
  if (mask.scalar_type() == at::kBool) {
    const at::Tensor is_blind = mask.any(-1, /*keepdim=*/true).eq(0);
    return {mask.bitwise_or(is_blind), is_blind};
  }
  const at::Tensor is_blind = mask.detach().eq(kMinusInfinity).all(-1, /*keepdim=*/true);
  return {mask.masked_fill(is_blind, 0), is_blind};
}

at::Tensor masked(const at::Tensor& scores, const at::Tensor& mask) {
  return mask.scalar_type() == at::kBool ? scores.masked_fill(mask.eq(0), kMinusInfinity) : scores + mask;
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                     std::optional<double> scale, bool enable_gqa) {
  const bool is_masked = mask && mask->defined();
  TORCH_CHECK_VALUE(
      query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
      fmt::format(
          "[aten::scaled_dot_product_attention] query, key and value have {}, {} and {} dims: each is [..., length, "
          "features]. Give at least 2.",
          query.dim(), key.dim(), value.dim()));
  TORCH_CHECK_VALUE(
      !(is_causal && is_masked),
      "[aten::scaled_dot_product_attention] got is_causal=True and an attn_mask; they exclude each other. "
      "Give one of them.");
  int64_t n_shared = 1;
  if (enable_gqa) {
    TORCH_CHECK_VALUE(key.dim() >= 3 && query.dim() >= 3 && key.size(-3) > 0 && query.size(-3) % key.size(-3) == 0,
                      fmt::format("[aten::scaled_dot_product_attention] query of shape [{}] and key of shape [{}] do "
                                  "not share heads. Make the "
                                  "query's number of heads a multiple of the key's.",
                                  fmt::join(query.sizes(), ", "), fmt::join(key.sizes(), ", ")));
    n_shared = query.size(-3) / key.size(-3);
  }
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  at::Tensor scores = query.mul(factor).matmul(repeat_heads(key, n_shared).mT());
  if (is_causal) scores = masked(scores, causal_mask(scores));
  const Mask seen = is_masked ? without_blind_rows(*mask) : Mask();
  if (is_masked) scores = masked(scores, seen.values);
  at::Tensor weights = at::softmax(scores, -1);
  if (dropout_p > 0) weights = at::dropout(weights, dropout_p, /*train=*/true);
  const at::Tensor result = weights.matmul(repeat_heads(value, n_shared));
  return is_masked ? result.masked_fill(seen.is_blind, 0) : result;
}

}  // namespace

void register_attention() { add_composition("scaled_dot_product_attention", &attention); }

}  // namespace shardwise
