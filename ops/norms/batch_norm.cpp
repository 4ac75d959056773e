// ops/norms/batch_norm.cpp: batch and instance norm. Statistics are those of the whole batch, from each rank's moments.
#include "ops/families.h"
#include "ops/norms/statistics.h"
#include "ops/support/by_rule.h"
#include "ops/support/dense_dtypes.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"

#include <ATen/Functions.h>

#include <array>
#include <numeric>

namespace shardwise {
namespace {

using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// torch's kernels, which divide by the number of samples, on pieces that may be empty.

at::Tensor normalize(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                     const at::Tensor& mean, const at::Tensor& variance, double eps) {
  if (input.numel() == 0) return at::empty_like(input);
  return std::get<0>(
      at::native_batch_norm(input, weight, bias, mean, variance, /*training=*/false, /*momentum=*/0, eps));
}

/// Per channel the sums of grad * (input - mean) and of grad.
std::tuple<at::Tensor, at::Tensor> sums(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean) {
  if (input.numel() == 0) return {at::zeros_like(mean), at::zeros_like(mean)};
  const at::Tensor one = at::ones_like(mean);
  auto [nothing, product, sum] = at::native_batch_norm_backward(grad, input, {}, mean, one, {}, {}, /*train=*/false,
                                                                /*eps=*/0, {false, true, true});
  return {product, sum};
}

at::Tensor normalize_shape(const at::Tensor& input, const MaybeTensor&, const MaybeTensor&, const at::Tensor&,
                           const at::Tensor&, double) {
  return at::empty_like(input, input.suggest_memory_format());
}

std::tuple<at::Tensor, at::Tensor> sums_shape(const at::Tensor&, const at::Tensor&, const at::Tensor& mean) {
  return {at::empty_like(mean), at::empty_like(mean)};
}

/// Tensors have the axes of the input, "nc…", or of its channels. Statistics of a batch need all dims but the channels `whole`.
Rule by_channel(const char* text, bool whole) {
  const auto describe = [=](const OpCall& call, Signature& signature) {
    const Axes all = signature.add_factors(call.operands[call.operand_at("input")].sizes);
    for (size_t dim = 0; dim < all.size(); ++dim) signature.factors[all[dim].factor].is_whole = whole && dim != 1;
    const Axes channel{all[1]};
    for (const Operand& operand : call.operands) {
      const std::string& name = call.name_of(operand);
      signature.inputs.push_back(name == "input" || name.starts_with("grad") ? all : channel);
    }
    signature.outputs = {call.op.n_returns() == 2 ? channel : all, channel, channel};
    signature.outputs.resize(call.op.n_returns());
  };
  return Rule(text, describe).sampled();
}

/// Dim 1 of a tensor against all its other dims.
struct Channels {
  explicit Channels(const at::Tensor& input) : per_channel(input.dim(), 1) {
    for (int64_t dim = 0; dim < input.dim(); ++dim)
      if (dim != 1) others.push_back(dim);
    per_channel[1] = input.size(1);
    n = static_cast<double>(input.numel()) / static_cast<double>(std::max<int64_t>(input.size(1), 1));
  }
  at::Tensor spread(const at::Tensor& values) const { return values.view(per_channel); }

  Dims others, per_channel;
  double n;
};

at::Tensor inverse_std(const at::Tensor& variance, double eps) { return (variance + eps).rsqrt(); }

at::Tensor scale_of(const at::Tensor& invstd, const MaybeTensor& weight) {
  return is_given(weight) ? invstd * *weight : invstd;
}

/// True if a rank has all samples, so that torch's own operator does.
bool is_whole(const at::Tensor& input) { return input.numel() > 0 && !is_sharded_along(input, c10::IntArrayRef()); }

/// True if torch's operator may write to the statistics along with the replicas that it reads.
bool may_write(const MaybeTensor& running) {
  return !is_given(running) || (is_dtensor(*running) && spec_of(*running)->layout().is_replicated());
}

void update(const MaybeTensor& running, const at::Tensor& value, double momentum) {
  if (is_given(running)) running->mul_(1 - momentum).add_(value.to(running->scalar_type()), momentum);
}

MaybeTensor maybe_widened(const MaybeTensor& parameter) {
  return is_given(parameter) ? MaybeTensor(widened(*parameter)) : parameter;
}

/// (input - mean) / sqrt(variance + eps) * weight + bias.
at::Tensor normalized(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                      const at::Tensor& mean, const at::Tensor& variance, double eps) {
  static const auto op = operator_of<decltype(normalize)>("shardwise::normalize_channels");
  return op.call(input, weight, bias, mean, variance, eps);
}

Three batch_norm(const at::Tensor& input, const MaybeTensor& given_weight, const MaybeTensor& given_bias,
                 const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training, double momentum,
                 double eps) {
  static const ByRule whole("aten::_native_batch_norm_legit"), no_stats("aten::_native_batch_norm_legit", "no_stats");
  check_dtype(input, [](const at::Tensor& one) {
    at::native_batch_norm(one, {}, {}, {}, {}, /*training=*/true, /*momentum=*/0, /*eps=*/1);
  });
  const Channels channels(input);
  const MaybeTensor weight = as_replica("native_batch_norm", given_weight, 1, input),
                    bias = as_replica("native_batch_norm", given_bias, 2, input);
  if (training && is_whole(input) && is_given(running_mean) == is_given(running_var) && may_write(running_mean) &&
      may_write(running_var))
    return is_given(running_mean)
               ? whole.tensors<3>(input, weight, bias, *running_mean, *running_var, true, momentum, eps)
               : no_stats.tensors<3>(input, weight, bias, true, momentum, eps);
  const at::Tensor values = widened(reduced(input));
  at::Tensor mean, variance;
  if (training) {
    std::tie(variance, mean) = at::var_mean(values, channels.others, /*correction=*/c10::Scalar(0));
    variance = reduced(variance);
    update(running_mean, mean, momentum);
    update(running_var, variance * (channels.n / (channels.n - 1)), momentum);
  } else {
    mean = widened(*running_mean);
    variance = widened(*running_var);
  }
  const at::Tensor result = normalized(values, maybe_widened(weight), maybe_widened(bias), mean, variance, eps);
  // torch's results are row-major or channels last.
  const at::Tensor ordered = result.to(input.scalar_type()).contiguous(input.suggest_memory_format());
  if (!training) return {ordered, input.new_empty({0}), input.new_empty({0})};
  const at::ScalarType dtype = statistics_dtype(input, weight);
  return {ordered, mean.to(dtype), inverse_std(variance, eps).to(dtype)};
}

/// The gradient of a batch that is divided. With the sums of all ranks it is a multiple of `grads` and of `values` in each channel.
at::Tensor input_gradient(const Channels& channels, const at::Tensor& grads, const at::Tensor& values,
                          const MaybeTensor& weight, const at::Tensor& mean, const at::Tensor& invstd,
                          const at::Tensor& product, const at::Tensor& sum) {
  const at::Tensor scale = scale_of(invstd, weight);
  const at::Tensor slope = (scale * invstd.square() * product).div_(-channels.n);
  const at::Tensor offset = (scale * sum).div_(-channels.n);
  return normalized(values, slope, offset, mean, at::ones_like(mean), /*eps=*/0)
      .addcmul_(grads, channels.spread(scale));
}

Three batch_norm_backward(const at::Tensor& grad, const at::Tensor& input, const MaybeTensor& weight,
                          const MaybeTensor& running_mean, const MaybeTensor& running_var, const MaybeTensor& save_mean,
                          const MaybeTensor& save_invstd, bool training, double eps, std::array<bool, 3> mask) {
  static const ByRule whole("aten::native_batch_norm_backward");
  static const auto op = operator_of<decltype(sums)>("shardwise::channel_sums");
  if (training && is_whole(input))
    return whole.tensors<3>(reduced(grad), input, weight, running_mean, running_var, save_mean, save_invstd, true, eps,
                            mask);
  const Channels channels(input);
  const at::Tensor grads = widened(reduced(grad)), values = widened(reduced(input));
  const at::Tensor mean = widened(training ? *save_mean : *running_mean);
  const at::Tensor invstd = training ? widened(*save_invstd) : inverse_std(widened(*running_var), eps);
  at::Tensor product, sum, of_input, of_weight, of_bias;
  if ((training && mask[0]) || mask[1] || mask[2]) std::tie(product, sum) = op.call(grads, values, mean);
  if (training && mask[0]) {
    const at::Tensor both = reduced(at::stack({product, sum}));
    product = both.select(0, 0);
    sum = both.select(0, 1);
    of_input = input_gradient(channels, grads, values, maybe_widened(weight), mean, invstd, product, sum);
  } else if (mask[0]) {
    of_input = grads * channels.spread(scale_of(invstd, weight));
  }
  if (mask[0]) of_input = of_input.to(input.scalar_type());
  const at::ScalarType dtype = statistics_dtype(input, weight);
  if (mask[1]) of_weight = (product * invstd).to(dtype);
  if (mask[2]) of_bias = sum.to(dtype);
  return {of_input, of_weight, of_bias};
}

// The same operators under torch's other names.

Three batch_norm_legit(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                       at::Tensor& running_mean, at::Tensor& running_var, bool training, double momentum, double eps) {
  return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

Three batch_norm_without_running(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                 bool training, double momentum, double eps) {
  return batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

Three batch_norm_without_training(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                  const at::Tensor& running_mean, const at::Tensor& running_var, double momentum,
                                  double eps) {
  return batch_norm(input, weight, bias, running_mean, running_var, /*training=*/false, momentum, eps);
}

Four with_reserve(Three&& results, const at::Tensor& input) {
  auto& [result, mean, invstd] = results;
  return {std::move(result), std::move(mean), std::move(invstd),
          input.new_empty({0}, input.options().dtype(at::kByte))};
}

Four batch_norm_with_update(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                            at::Tensor& running_mean, at::Tensor& running_var, double momentum, double eps) {
  return with_reserve(batch_norm(input, weight, bias, running_mean, running_var, true, momentum, eps), input);
}

Four batch_norm_without_update(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                               const MaybeTensor& running_mean, const MaybeTensor& running_var, double momentum,
                               double eps) {
  return with_reserve(batch_norm(input, weight, bias, running_mean, running_var, false, momentum, eps), input);
}

Three batch_norm_backward_with_reserve(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                                       const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                       const MaybeTensor& save_mean, const MaybeTensor& save_invstd, bool training,
                                       double eps, std::array<bool, 3> mask, const at::Tensor& /*reserve*/) {
  return batch_norm_backward(grad, input, weight, running_mean, running_var, save_mean, save_invstd, training, eps,
                             mask);
}

Four cudnn_batch_norm(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                      const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training, double momentum,
                      double eps) {
  return with_reserve(batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps), input);
}

Three cudnn_batch_norm_backward(const at::Tensor& input, const at::Tensor& grad, const at::Tensor& weight,
                                const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                const MaybeTensor& save_mean, const MaybeTensor& save_invstd, double eps,
                                const at::Tensor& /*reserve*/) {
  return batch_norm_backward(grad, input, weight, running_mean, running_var, save_mean, save_invstd, true, eps,
                             {true, true, true});
}

/// Each channel of each sample is a group; running statistics are the mean over the batch.
at::Tensor instance_norm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                         const MaybeTensor& running_mean, const MaybeTensor& running_var, bool use_input_stats,
                         double momentum, double eps, bool /*cudnn_enabled*/) {
  TORCH_CHECK(use_input_stats || (is_given(running_mean) && is_given(running_var)),
              "Expected running_mean and running_var to be defined when use_input_stats is false");
  if (!use_input_stats)
    return at::batch_norm(input, weight, bias, running_mean, running_var, false, momentum, eps, false);
  if (is_given(running_mean) || is_given(running_var)) {
    const at::NoGradGuard no_grad;
    Dims spatial(input.dim() - 2);
    std::iota(spatial.begin(), spatial.end(), 2);
    const at::Tensor values = widened(input.detach());
    update(running_mean, values.mean(spatial).mean(0), momentum);
    update(running_var, at::var(values, spatial, std::optional<at::Scalar>(1)).mean(0), momentum);
  }
  if (input.size(1) == 0) return input.clone();
  return at::group_norm(input, input.size(1), weight, bias, eps, false);
}

}  // namespace

void register_batch_norm(RuleTable& table) {
  define_operator(
      "normalize_channels(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, float eps) -> "
      "Tensor",
      {&normalize, &normalize_shape});
  define_operator("channel_sums(Tensor grad, Tensor input, Tensor mean) -> (Tensor products, Tensor sums)",
                  {&sums, &sums_shape});
  table.add("shardwise::normalize_channels", by_channel("nc…,c,c,c,c->nc…", /*whole=*/false));
  table.add("shardwise::channel_sums", by_channel("nc…,nc…,c->c,c", /*whole=*/false));
  table.add(
      {"aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats", "aten::native_batch_norm_backward"},
      by_channel("batch_norm", /*whole=*/true));
  aten_kernels().impl("native_batch_norm", &batch_norm);
  aten_kernels().impl("_native_batch_norm_legit", &batch_norm_legit);
  aten_kernels().impl("_native_batch_norm_legit.no_stats", &batch_norm_without_running);
  aten_kernels().impl("_native_batch_norm_legit_no_training", &batch_norm_without_training);
  aten_kernels().impl("_batch_norm_with_update", &batch_norm_with_update);
  aten_kernels().impl("_batch_norm_no_update", &batch_norm_without_update);
  aten_kernels().impl("cudnn_batch_norm", &cudnn_batch_norm);
  aten_kernels().impl("native_batch_norm_backward", &batch_norm_backward);
  aten_kernels().impl("batch_norm_backward", &batch_norm_backward_with_reserve);
  aten_kernels().impl("cudnn_batch_norm_backward", &cudnn_batch_norm_backward);
  add_composition("instance_norm", &instance_norm);
}

}  // namespace shardwise
