// ops/norms/layer_norm.cpp: layer norm and RMS norm. If a normalised dim is sharded, ranks exchange mean and variance only; else layer norm's rule
// applies.
#include "ops/families.h"
#include "ops/norms/statistics.h"
#include "ops/support/by_rule.h"
#include "ops/support/dense_dtypes.h"
#include "ops/support/kernels.h"

#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace shardwise {
namespace {

/// All operands but weight and bias have the batch dims; the trailing, normalised dims are whole. Mean and rstd have
/// extent 1 there. Gradients of weight and bias are summed over the batch.
struct LayerNorm : NormAxes {
  LayerNorm(const OpCall& call, Signature& signature) {
    const c10::IntArrayRef sizes = call.operands[call.operand_at("input")].sizes;
    const size_t n_batch = sizes.size() - call.arg("normalized_shape").toListRef().size();
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      const Axis axis{signature.add_factor(sizes[dim])};
      const bool is_batch = dim < n_batch;
      signature.factors.back().is_whole = !is_batch;
      all.push_back(axis);
      statistics.push_back(is_batch ? axis : Axis{});
      if (!is_batch) parameter.push_back(axis);
    }
    add_inputs(call, signature);
  }
};

/// Forward and backward exchange two numbers per row each. For rows of at least this length these are fewer bytes than a gather.
constexpr int64_t kLongRow = 5;

/// The normalised dims and the batch dims before them.
struct Rows {
  Rows(const at::Tensor& input, c10::IntArrayRef normalized) : batch(input.dim() - normalized.size()) {
    std::iota(batch.begin(), batch.end(), 0);
    for (size_t i = 0; i < normalized.size(); ++i)
      dims.push_back(static_cast<int64_t>(i) - static_cast<int64_t>(normalized.size()));
    n = static_cast<double>(c10::multiply_integers(normalized));
  }
  at::Tensor mean(const at::Tensor& values) const { return reduced(sum(values)).div(n); }
  /// The means of two tensors, in one reduction.
  std::pair<at::Tensor, at::Tensor> means(const at::Tensor& a, const at::Tensor& b) const {
    const at::Tensor both = reduced(at::stack({sum(a), sum(b)})).div(n);
    return {both.select(0, 0), both.select(0, 1)};
  }
  at::Tensor sum(const at::Tensor& values) const { return values.sum(dims, /*keepdim=*/true); }
  /// True if latency dominates an exchange of the rows' statistics.
  bool are_few(const at::Tensor& values) const {
    const int64_t n_others = spec_of(values)->mesh()->size() - 1;
    return static_cast<int64_t>(static_cast<double>(values.numel()) / n) * n_others * 2 * int64_t{sizeof(double)} <=
           kLatencyBytes;
  }
  at::Tensor over_batch(const at::Tensor& values) const { return batch.empty() ? values : values.sum(batch); }

  Dims dims, batch;
  double n;
};

/// True if the ranks exchange statistics. False for arguments that the dense operator rejects: the rule reports them.
bool is_shared(const at::Tensor& input, c10::IntArrayRef normalized, const MaybeTensor& weight,
               const MaybeTensor& bias) {
  const auto fits = [&](const MaybeTensor& tensor) { return !is_given(tensor) || tensor->sizes() == normalized; };
  const bool is_valid = !normalized.empty() && input.dim() >= static_cast<int64_t>(normalized.size()) &&
                        input.sizes().slice(input.dim() - normalized.size()) == normalized && fits(weight) &&
                        fits(bias);
  return is_valid && c10::multiply_integers(normalized) >= kLongRow &&
         is_sharded_along(input, Rows(input, normalized).dims);
}

Three layer_norm(const at::Tensor& input, c10::IntArrayRef normalized, const MaybeTensor& given_weight,
                 const MaybeTensor& given_bias, double eps) {
  static const ByRule by_rule("aten::native_layer_norm");
  if (!is_shared(input, normalized, given_weight, given_bias))
    return by_rule.tensors<3>(input, normalized, given_weight, given_bias, eps);
  const MaybeTensor weight = as_replica("native_layer_norm", given_weight, 2, input),
                    bias = as_replica("native_layer_norm", given_bias, 3, input);
  const Rows rows(input, normalized);
  const at::Tensor values = widened(reduced(input));
  at::Tensor mean, variance, result;
  if (rows.are_few(values)) {  // one exchange
    std::tie(variance, mean) = at::var_mean(values, rows.dims, /*correction=*/c10::Scalar(0), /*keepdim=*/true);
    result = values - mean;
  } else {  // two exchanges, with half the bytes
    mean = rows.mean(values);
    result = values - mean;
    variance = rows.mean(result.square());
  }
  const at::Tensor rstd = (variance + eps).rsqrt();
  result.mul_(rstd);
  if (is_given(weight) && is_given(bias))
    result = at::addcmul(widened(*bias), result, widened(*weight));
  else if (is_given(weight))
    result = result * *weight;
  else if (is_given(bias))
    result = result + *bias;
  const at::ScalarType dtype = statistics_dtype(input, weight);
  return {result.to(input.scalar_type()).contiguous(), mean.to(dtype), rstd.to(dtype)};
}

Three layer_norm_backward(const at::Tensor& grad, const at::Tensor& input, c10::IntArrayRef normalized,
                          const at::Tensor& mean, const at::Tensor& rstd, const MaybeTensor& weight,
                          const MaybeTensor& bias, std::array<bool, 3> mask) {
  static const ByRule by_rule("aten::native_layer_norm_backward");
  if (!is_shared(input, normalized, weight, bias))
    return by_rule.tensors<3>(reduced_for_several(grad, input, mask), input, normalized, mean, rstd, weight, bias,
                              mask);
  const Rows rows(input, normalized);
  const at::Tensor grads = widened(reduced(grad)), scale = widened(rstd);
  const at::Tensor unit = (widened(reduced(input)) - widened(mean)).mul_(scale);
  at::Tensor of_input, of_weight, of_bias;
  if (mask[0]) {
    const at::Tensor weighted = is_given(weight) ? grads * *weight : grads;
    const auto [slope, offset] = rows.means(weighted * unit, weighted);
    of_input = at::addcmul(weighted, unit, slope, -1).sub_(offset).mul_(scale).to(input.scalar_type());
  }
  const at::ScalarType dtype = statistics_dtype(input, weight);
  if (mask[1]) of_weight = rows.over_batch(grads * unit).to(dtype);
  if (mask[2]) of_bias = rows.over_batch(grads).to(dtype);
  return {of_input, of_weight, of_bias};
}

/// If a normalised dim is sharded, ranks exchange the mean square. torch's own composition would not work: it adds `eps` in place to the mean square
/// while that is still Partial.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input, c10::IntArrayRef normalized,
                                            const MaybeTensor& weight, std::optional<double> eps) {
  check_dtype(input, [](const at::Tensor& one) { at::rms_norm(one, one.size(-1)); });
  const at::Tensor values = widened(reduced(input));
  const double smallest = values.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                              : std::numeric_limits<float>::epsilon();
  const at::Tensor scale = (Rows(input, normalized).mean(values.square()) + eps.value_or(smallest)).rsqrt();
  at::Tensor result = values * scale;
  if (is_given(weight)) result = result * *weight;
  return {result.to(input.scalar_type()).contiguous(), scale};
}

}  // namespace

void register_layer_norm(RuleTable& table) {
  table.add("aten::native_layer_norm", Rule("layer_norm", describe_norm<LayerNorm>).sampled());
  table.add("aten::native_layer_norm_backward",
            Rule("layer_norm_backward", describe_norm_backward<LayerNorm>).sampled().linear_in_first());
  aten_kernels().impl_in_memory("native_layer_norm", &layer_norm);
  aten_kernels().impl_in_memory("native_layer_norm_backward", &layer_norm_backward);
  add_composition("_fused_rms_norm", &rms_norm);
  table.keep_symbols({"aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::_fused_rms_norm",
                      "aten::_fused_rms_norm_backward"});
}

}  // namespace shardwise
