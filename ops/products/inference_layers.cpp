// ops/products/inference_layers.cpp: the operators that nn.MultiheadAttention and nn.TransformerEncoderLayer call at inference.
//
// If only batches are sharded, each rank calls torch's operator on its own batches. For all other layouts the operators are composed of the ones that
// the layers call in training, and send the same messages.
#include "ops/families.h"
#include "ops/support/batch_pieces.h"
#include "ops/support/kernels.h"
#include "ops/support/maybe_tensor.h"
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/plain_operand.h"
#include "text/check.h"

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace shardwise {
namespace {

using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;

/// torch's numbers for the dims of a mask. True hides a key.
enum MaskType : int64_t {
  kOfPairs = 0,
  kOfKeys = 1,
  kOfHeads = 2
};  // [queries, keys], [batch, keys], [batch, heads, queries, keys]

/// A call whose ranks each have their own batches, [batch, length, features], and all weights. Ranks outside of the mesh take the same way.
class BatchCall {
 public:
  BatchCall(const Tensor& source, std::initializer_list<Tensor> weights, const MaybeTensor& mask, bool is_mask_whole) {
    if (!has_batch_piece(source, 0)) return;
    const SpecPtr& spec = spec_of(source);
    if (!std::ranges::all_of(weights, [&](const Tensor& weight) { return has_whole_piece(weight, *spec); })) return;
    if (is_given(mask)) {
      if (!is_dtensor(*mask) && objection_to_plain(*mask, OperandRole::kSelection, spec->mesh())) return;
      const Tensor laid_out = replica_of(*mask, spec->mesh());
      if (spec_of(laid_out)->mesh() != spec->mesh()) return;
      mask_ = redistribute(laid_out, is_mask_whole ? Placements(spec->mesh()->ndim()) : spec->placements().vec());
    }
    spec_ = spec;
  }

  explicit operator bool() const { return spec_ != nullptr; }
  bool has_piece() const { return spec_->is_member(); }
  MaybeTensor mask() const { return is_given(mask_) ? MaybeTensor(piece(*mask_)) : std::nullopt; }
  static const Tensor& piece(const Tensor& tensor) { return maybe_dtensor(tensor)->shards()[0]; }
  /// The whole of a result of `sizes` whose dim 0 is the batch. `piece`: undefined if the rank has no batches.
  Tensor whole(const Tensor& piece, const Dims& sizes) const {
    const SpecPtr spec =
        Spec::intern(spec_->mesh(), sizes, spec_->placements().vec(), row_major_strides(sizes), spec_->dtype());
    if (!has_piece()) return from_pieces({}, spec);
    const auto options = at::device(spec_->mesh()->device()).dtype(spec->dtype());
    return from_pieces({piece.defined() ? piece : at::empty(spec->boxes()[0].sizes, options)}, spec);
  }

 private:
  SpecPtr spec_;
  MaybeTensor mask_;
};

MaybeTensor as_bools(const MaybeTensor& mask) {
  return is_given(mask) ? MaybeTensor(mask->to(at::kBool)) : std::nullopt;
}

/// The weights of an attention layer: the concatenated projections of queries, keys and values, and the output projection.
struct Projections {
  const Tensor &in, &in_bias, &out, &out_bias;
  int64_t n_heads;

  /// [batch, heads, length, features of a head] of queries, keys and values.
  std::array<Tensor, 3> heads_of(const Tensor& query, const Tensor& key, const Tensor& value) const {
    const auto by_heads = [&](const Tensor& rows) { return rows.unflatten(-1, {n_heads, -1}).transpose(1, 2); };
    const std::array<const Tensor*, 3> sources{&query, &key, &value};
    std::array<Tensor, 3> result;
    if (query.is_same(key) && key.is_same(value)) {
      const Tensor rows = at::linear(query, in, in_bias).unflatten(-1, {3, -1});
      for (int64_t i = 0; i < 3; ++i) result[i] = by_heads(rows.select(-2, i));
    } else {
      const std::vector<Tensor> weights = in.chunk(3), biases = in_bias.chunk(3);
      for (size_t i = 0; i < 3; ++i) result[i] = by_heads(at::linear(*sources[i], weights[i], biases[i]));
    }
    return result;
  }
};

/// The result and the weights of each head. Weights are computed if they are requested or if there is a mask. Queries that see no key give NaN.
Two attend(const std::array<Tensor, 3>& heads, const Projections& weights, const MaybeTensor& mask, bool needs_weights,
           MaskType mask_type) {
  const auto& [query, key, value] = heads;
  Tensor result, shares;
  if (needs_weights || mask) {
    const double factor = 1 / std::sqrt(static_cast<double>(query.size(-1)));
    Tensor scores = query.mul(factor).matmul(key.mT());
    if (mask)
      scores = scores.masked_fill(mask_type == kOfKeys ? mask->unsqueeze(1).unsqueeze(1) : *mask,
                                  -std::numeric_limits<double>::infinity());
    shares = at::softmax(scores, -1);
    result = shares.matmul(value);
  } else {
    result = at::scaled_dot_product_attention(query, key, value);
  }
  return {at::linear(result.transpose(1, 2).flatten(2), weights.out, weights.out_bias), shares};
}

Two multi_head_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t embed_dim,
                         int64_t n_heads, const Tensor& in, const Tensor& in_bias, const Tensor& out,
                         const Tensor& out_bias, const MaybeTensor& given_mask, bool needs_weights, bool averages,
                         std::optional<int64_t> mask_type) {
  SW_CHECK_VALUE(
      query.dim() == 3 && query.size(2) == embed_dim && query.sizes() == key.sizes() && key.sizes() == value.sizes() &&
          n_heads > 0 && embed_dim % n_heads == 0 && (!is_given(given_mask) || mask_type),
      "[aten::_native_multi_head_attention] query, key and value of [{}], [{}] and [{}] with {} heads{} do not fit. "
      "Give tensors [batch, length, {}], a number of heads that divides the last dim, and a mask_type with a mask.",
      fmt::join(query.sizes(), ", "), fmt::join(key.sizes(), ", "), fmt::join(value.sizes(), ", "), n_heads,
      is_given(given_mask) && !mask_type ? " and a mask without a mask_type" : "", embed_dim);
  const MaybeTensor mask = as_bools(given_mask);
  const auto type = static_cast<MaskType>(mask_type.value_or(kOfPairs));
  const bool is_same = query.is_same(key) && key.is_same(value);
  if (is_same) {
    if (const BatchCall call(query, {in, in_bias, out, out_bias}, mask, type == kOfPairs); call) {
      Tensor result, shares;
      if (call.has_piece()) {
        const Tensor& source = call.piece(query);
        std::tie(result, shares) = at::_native_multi_head_attention(
            source, source, source, embed_dim, n_heads, call.piece(in), call.piece(in_bias), call.piece(out),
            call.piece(out_bias), call.mask(), needs_weights, averages, mask_type);
      }
      Dims of_shares{query.size(0), n_heads, query.size(1), query.size(1)};
      if (averages) of_shares.erase(of_shares.begin() + 1);
      return {call.whole(result, Dims(query.sizes())), needs_weights ? call.whole(shares, of_shares) : Tensor()};
    }
  }
  const Projections weights{in, in_bias, out, out_bias, n_heads};
  auto [result, shares] = attend(weights.heads_of(query, key, value), weights, mask, needs_weights, type);
  if (!needs_weights) shares.reset();
  return {result, needs_weights && averages ? shares.mean(1) : shares};
}

Tensor encoder_layer(const Tensor& source, int64_t embed_dim, int64_t n_heads, const Tensor& in, const Tensor& in_bias,
                     const Tensor& out, const Tensor& out_bias, bool use_gelu, bool norm_first, double eps,
                     const Tensor& norm_1, const Tensor& norm_bias_1, const Tensor& norm_2, const Tensor& norm_bias_2,
                     const Tensor& hidden, const Tensor& hidden_bias, const Tensor& back, const Tensor& back_bias,
                     const MaybeTensor& given_mask, std::optional<int64_t> mask_type) {
  const MaybeTensor mask = as_bools(given_mask);
  if (const BatchCall call(
          source,
          {in, in_bias, out, out_bias, norm_1, norm_bias_1, norm_2, norm_bias_2, hidden, hidden_bias, back, back_bias},
          mask, mask_type == kOfPairs);
      call) {
    const auto piece = BatchCall::piece;
    const auto result = [&] {
      return at::_transformer_encoder_layer_fwd(
          piece(source), embed_dim, n_heads, piece(in), piece(in_bias), piece(out), piece(out_bias), use_gelu,
          norm_first, eps, piece(norm_1), piece(norm_bias_1), piece(norm_2), piece(norm_bias_2), piece(hidden),
          piece(hidden_bias), piece(back), piece(back_bias), call.mask(), mask_type);
    };
    return call.whole(call.has_piece() ? result() : Tensor(), Dims(source.sizes()));
  }
  const auto normed = [&](const Tensor& rows, const Tensor& weight, const Tensor& bias) {
    return at::layer_norm(rows, {embed_dim}, weight, bias, eps);
  };
  const auto attended = [&](const Tensor& rows) {
    return std::get<0>(at::_native_multi_head_attention(rows, rows, rows, embed_dim, n_heads, in, in_bias, out,
                                                        out_bias, mask, /*need_weights=*/false,
                                                        /*average_attn_weights=*/true, mask_type));
  };
  const auto fed = [&](const Tensor& rows) {
    const Tensor inner = at::linear(rows, hidden, hidden_bias);
    return at::linear(use_gelu ? at::gelu(inner) : at::relu(inner), back, back_bias);
  };
  if (norm_first) {
    const Tensor sum = source + attended(normed(source, norm_1, norm_bias_1));
    return sum + fed(normed(sum, norm_2, norm_bias_2));
  }
  const Tensor sum = normed(source + attended(source), norm_1, norm_bias_1);
  return normed(sum + fed(sum), norm_2, norm_bias_2);
}

/// Always false: nn.TransformerEncoder then keeps the padding and passes the mask to its layers.
bool is_left_aligned(const Tensor& /*source*/, const Tensor& /*mask*/) { return false; }

Tensor nested_from_mask(const Tensor& /*source*/, const Tensor& /*mask*/, bool /*mask_check*/) {
  C10_THROW_ERROR(NotImplementedError,
                  "[aten::_nested_tensor_from_mask] a nested tensor cannot be a DTensor. Pass "
                  "enable_nested_tensor=False to nn.TransformerEncoder.");
}

}  // namespace

void register_inference_layers(RuleTable& /*table*/) {
  aten_kernels().impl("_nested_tensor_from_mask_left_aligned", torch::CppFunction(&is_left_aligned));
  aten_kernels().impl("_nested_tensor_from_mask", torch::CppFunction(&nested_from_mask));
  aten_kernels().impl("_native_multi_head_attention", &multi_head_attention);
  aten_kernels().impl("_transformer_encoder_layer_fwd", &encoder_layer);
}

}  // namespace shardwise
