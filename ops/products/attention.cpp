// ops/products/attention.cpp: attention, where batch, heads and queries stay sharded.
//
// Attention runs the fused operator that torch picks for dense tensors (fused_attention.cpp) or, if torch picks none, matrix products and a softmax,
// as torch does for plain tensors. Products and a softmax also replace the fused operator if they send fewer bytes: a fused kernel needs whole keys,
// so keys that are sharded along their length or features would be gathered. This pays for few queries (a decoder's next token) and many keys. If the
// keys' length is sharded, each rank then receives a sum of results and of two statistics per query; if features are sharded, a sum of scores.
//
// As on plain tensors, torch's fused operators have no second derivative and no forward mode; torch.nn.attention.sdpa_kernel(SDPBackend.MATH) has
// both.
#include "ops/families.h"
#include "ops/products/fused_attention.h"
#include "ops/support/by_rule.h"
#include "ops/support/kernels.h"
#include "ops/support/maybe_tensor.h"
#include "ops/support/plain_self.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/gradients.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/rules/move_bytes.h"
#include "runtime/tensor/device_mesh.h"
#include "text/check.h"

#include <ATen/Functions.h>
#include <ATen/SDPBackend.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace shardwise {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Each head `n` times in a row: n query heads share one key and value head.
at::Tensor repeat_heads(const at::Tensor& heads, int64_t n) {
  if (n == 1) return heads;
  std::vector<c10::SymInt> sizes = heads.sym_sizes().vec();
  sizes.insert(sizes.end() - 2, n);
  return heads.unsqueeze(-3).expand_symint(sizes).flatten(-4, -3);
}

/// True where a query may attend to a key, which is up to its own position. Replicated.
at::Tensor causal_mask(const at::Tensor& scores) {
  const auto options = at::TensorOptions().dtype(at::kBool).device(scores.device());
  const c10::IntArrayRef sizes = scores.sizes().slice(scores.dim() - 2);
  return replica_of(at::ones(sizes, options).tril(), spec_of(scores)->mesh());
}

/// An attention mask (bools, or terms added to the scores), and the queries for which it masks out all keys, [..., 1].
struct Mask {
  at::Tensor values, is_blind;
};

/// A softmax over no key is NaN. So queries without a key attend to all keys, and their results are dropped.
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

using at::SDPBackend;

constexpr int64_t kMostFeatures = 256;  // of a head, for torch's fused kernels for GPUs

/// A tensor on the CPU with the sizes, strides and dtype of `tensor`, and without memory.
at::Tensor shape_on_cpu(const at::Tensor& tensor) {
  return at::for_blob(nullptr, tensor.sizes())
      .strides(tensor.strides())
      .options(tensor.options().device(at::kCPU))
      .make_tensor()
      .set_requires_grad(records(tensor));
}

/// The kernel that torch picks for operands on meta on the kind of device that is planned for. `asks`: torch's own choice, which it makes on the CPU.
template <class Ask>
SDPBackend planned_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const MaybeTensor& mask, bool enable_gqa, const Ask& asks) {
  if (takes_cpu_kernels(query)) {
    const MaybeTensor terms = is_given(mask) ? MaybeTensor(shape_on_cpu(*mask)) : std::nullopt;
    return static_cast<SDPBackend>(asks(shape_on_cpu(query), shape_on_cpu(key), shape_on_cpu(value), terms));
  }
  const bool is_for_cuda = planned_device_on_meta() == c10::kCUDA;
  const bool fits = query.dim() == 4 && key.dim() == 4 && query.size(3) <= kMostFeatures;
  if (!is_for_cuda || !fits) return SDPBackend::math;
  const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (is_half && !is_given(mask) && (enable_gqa || query.size(1) == key.size(1))) return SDPBackend::flash_attention;
  return query.size(1) == key.size(1) ? SDPBackend::efficient_attention : SDPBackend::math;
}

/// True if an operand is on meta, and the program is planned for the device of the operands' mesh. Other steps on meta take products, which any device has.
bool is_planned(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  if (!query.is_meta()) return false;
  MeshPtr mesh;
  for (const at::Tensor& operand : {query, key, value}) find_mesh(operand, mesh);
  return !mesh || mesh->planned_type() == planned_device_on_meta();
}

/// The kernel that torch picks for plain tensors of these shapes, strides and dtypes, as a value of at::SDPBackend. torch's choice depends on nothing
/// else, so it is equal on all ranks.
int64_t fused_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
                     double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (is_planned(query, key, value)) {
    const auto on_cpu = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& terms) {
      return at::_fused_sdp_choice(q, k, v, terms, dropout_p, is_causal, scale, enable_gqa);
    };
    return static_cast<int64_t>(planned_choice(query, key, value, mask, enable_gqa, on_cpu));
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "");
  const c10::DispatchKey kernel = at::TensorOptions(query.device()).computeDispatchKey();
  if (!op.hasKernelForDispatchKey(kernel)) return static_cast<int64_t>(SDPBackend::math);
  return at::_ops::_fused_sdp_choice::redispatch(c10::DispatchKeySet(kernel), query, key, value, mask, dropout_p,
                                                 is_causal, scale, enable_gqa);
}

/// True if matrix products and a softmax receive fewer bytes per rank than a fused kernel, which needs whole keys.
bool products_send_less(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  if (!is_dtensor(query) || !is_dtensor(key) || !is_dtensor(value)) return false;
  const auto gathered = [](const at::Tensor& tensor, int64_t dim) { return bytes_to_gather(*spec_of(tensor), dim); };
  const int64_t lengths = gathered(key, 2) + gathered(value, 2), scored = gathered(query, 3) + gathered(key, 3);
  const int64_t features = scored + gathered(value, 3);
  if (lengths + features == 0 || (lengths > 0 && is_sharded_along(query, 2))) return false;
  const Dims sizes = sizes_of(query);
  double n_rows = 1;
  for (const int64_t dim : {0, 1, 2})
    n_rows *= static_cast<double>(sizes[dim]) / static_cast<double>(spec_of(query)->layout().n_parts(dim));
  double summed = 0;  // elements
  if (lengths > 0) summed += n_rows * static_cast<double>(sizes_of(value)[3] + 2);
  if (scored > 0) summed += n_rows * static_cast<double>(sizes_of(key)[2]);
  return 2 * summed * static_cast<double>(spec_of(query)->element_bytes()) < static_cast<double>(lengths + features);
}

/// True if each shard of query heads has whole groups of `n_shared` heads, or the heads are not sharded.
bool has_whole_groups(const at::Tensor& query, int64_t n_shared) {
  if (!is_dtensor(query) || !is_sharded_along(query, 1)) return true;
  return std::ranges::all_of(spec_of(query)->layout().shard_intervals(1), [&](const Interval& heads) {
    return heads.begin % n_shared == 0 && heads.end % n_shared == 0;
  });
}

/// The mask as terms added to the scores. A plain mask becomes a replica.
MaybeTensor as_terms(const MaybeTensor& mask, at::ScalarType dtype, const MeshPtr& mesh) {
  if (!is_given(mask)) return mask;
  const at::Tensor given = replica_of(*mask, mesh);
  if (given.scalar_type() != at::kBool) return given;
  return at::zeros_like(given, given.options().dtype(dtype)).masked_fill_(given.logical_not(), kMinusInfinity);
}

/// torch's flash kernel for GPUs requires a multiple of 8 features.
at::Tensor with_padded_features(const at::Tensor& tensor) {
  return at::constant_pad_nd(tensor, {0, (8 - fixed_size(tensor, -1) % 8) % 8});
}

/// Pads features if the kernel requires it, as at::scaled_dot_product_attention does.
at::Tensor with_fitting_features(SDPBackend backend, const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const MaybeTensor& mask, double dropout_p, bool is_causal,
                                 std::optional<double> scale) {
  if (backend != SDPBackend::flash_attention || takes_cpu_kernels(query) || fixed_size(query, -1) % 8 == 0)
    return fused_attention(backend, query, key, value, mask, dropout_p, is_causal, scale);
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(fixed_size(query, -1))));
  return fused_attention(backend, with_padded_features(query), with_padded_features(key), with_padded_features(value),
                         mask, dropout_p, is_causal, factor)
      .narrow(-1, 0, fixed_size(value, -1));
}

/// Throws: c10::ValueError for a plain tensor that does not count as a replica.
void check_operand(const at::Tensor& tensor, const MeshPtr& mesh) {
  if (is_dtensor(tensor)) return;
  const bool selects = tensor.scalar_type() == at::kBool;
  const auto objection = objection_to_plain(tensor, selects ? OperandRole::kSelection : OperandRole::kValue, mesh);
  SW_CHECK_VALUE(!objection, "[aten::scaled_dot_product_attention] {}", *objection);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
                     double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const bool is_masked = is_given(mask);
  SW_CHECK_VALUE(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
                 "[aten::scaled_dot_product_attention] query, key and value have {}, {} and {} dims: each is [..., "
                 "length, features]. Give at least 2.",
                 query.dim(), key.dim(), value.dim());
  TORCH_CHECK_VALUE(!(is_causal && is_masked),
                    "[aten::scaled_dot_product_attention] got is_causal=True and an attn_mask; they exclude each "
                    "other. Give one of them.");
  int64_t n_shared = 1;
  if (enable_gqa) {
    const bool have_heads = key.dim() >= 3 && query.dim() >= 3;
    const int64_t n_keys = have_heads ? fixed_size(key, -3) : 0, n_queries = have_heads ? fixed_size(query, -3) : 0;
    SW_CHECK_VALUE(n_keys > 0 && n_queries % n_keys == 0,
                   "[aten::scaled_dot_product_attention] query of shape [{}] and key of shape [{}] do not share heads. "
                   "Make the query's number of heads a multiple of the key's.",
                   fmt::join(query.sizes(), ", "), fmt::join(key.sizes(), ", "));
    n_shared = n_queries / n_keys;
  }
  const auto backend =
      static_cast<SDPBackend>(fused_choice(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa));
  if (backend > SDPBackend::math && !products_send_less(query, key, value)) {
    const std::array<const at::Tensor*, 4> operands{&query, &key, &value, is_masked ? &*mask : &query};
    MeshPtr mesh;
    for (const at::Tensor* operand : operands) find_mesh(*operand, mesh);
    for (const at::Tensor* operand : operands) check_operand(*operand, mesh);
    const MaybeTensor terms = as_terms(mask, query.scalar_type(), mesh);
    const int64_t n_copies = has_whole_groups(query, n_shared) || is_sharded_along(key, 1) ? 1 : n_shared;
    return with_fitting_features(backend, query, repeat_heads(key, n_copies), repeat_heads(value, n_copies), terms,
                                 dropout_p, is_causal, scale);
  }
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(fixed_size(query, -1))));
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

at::Tensor planned_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const MaybeTensor& mask, double dropout_p, bool is_causal, std::optional<double> scale,
                             bool enable_gqa) {
  const auto backend =
      static_cast<SDPBackend>(fused_choice(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa));
  if (backend == SDPBackend::math || is_dtensor(query) || is_dtensor(key) || is_dtensor(value))
    return at::scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  if (backend == SDPBackend::efficient_attention) {
    MaybeTensor terms = mask;
    if (is_given(mask))
      terms = mask->to(query.scalar_type()).expand({query.size(0), query.size(1), query.size(2), key.size(2)});
    return std::get<0>(at::_scaled_dot_product_efficient_attention(query, key, value, terms, records(query), dropout_p,
                                                                   is_causal, scale));
  }
  if (takes_cpu_kernels(query))
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, mask, scale));
  return std::get<0>(at::_scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal,
                                                             /*return_debug_mask=*/false, scale));
}

void register_attention(RuleTable& /*table*/) {
  add_composition("scaled_dot_product_attention", &attention);
  aten_kernels().impl("_fused_sdp_choice", &fused_choice);
}

}  // namespace shardwise
