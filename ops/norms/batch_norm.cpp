// ops/norms/batch_norm.cpp: batch and instance norm. Statistics are those of the whole batch, from each rank's sums.
#include "ops/families.h"
#include "ops/norms/statistics.h"
#include "ops/support/by_rule.h"
#include "ops/support/dense_dtypes.h"
#include "ops/support/kernels.h"
#include "ops/support/plain_self.h"

#include <ATen/Functions.h>

#include <array>
#include <numeric>

namespace shardwise {
namespace {

using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Dim 1 of a tensor against all its other dims.
struct Channels {
  explicit Channels(const at::Tensor& input) : per_channel(input.dim(), 1) {
    for (int64_t dim = 0; dim < input.dim(); ++dim)
      if (dim != 1) others.push_back(dim);
    per_channel[1] = input.size(1);
    n = static_cast<double>(input.numel()) / static_cast<double>(std::max<int64_t>(input.size(1), 1));
  }
  at::Tensor sum(const at::Tensor& tensor) const { return tensor.sum(others); }
  at::Tensor spread(const at::Tensor& values) const { return values.view(per_channel); }

  Dims others, per_channel;
  double n;
};

at::Tensor inverse_std(const at::Tensor& variance, double eps) { return (variance + eps).rsqrt(); }

void update(const MaybeTensor& running, const at::Tensor& value, double momentum) {
  if (is_given(running)) running->mul_(1 - momentum).add_(value.to(running->scalar_type()), momentum);
}

at::Tensor scale_of(const at::Tensor& invstd, const MaybeTensor& weight) {
  return is_given(weight) ? invstd * *weight : invstd;
}

/// A plain weight or bias as a replica without history, so that its gradient stays plain.
MaybeTensor as_replica(const MaybeTensor& parameter, size_t arg, const at::Tensor& input) {
  if (!is_given(parameter) || is_dtensor(*parameter) || !is_dtensor(input)) return parameter;
  return replica_of_plain("native_batch_norm", *parameter, spec_of(input)->mesh(), /*keeps_history=*/false, arg);
}

/// torch's results are row-major or channels last.
at::Tensor in_torchs_order(const at::Tensor& result, const at::Tensor& input) {
  return result.contiguous(input.suggest_memory_format());
}

Three batch_norm(const at::Tensor& input, const MaybeTensor& given_weight, const MaybeTensor& given_bias,
                 const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training, double momentum,
                 double eps) {
  check_dtype(input, [](const at::Tensor& one) {
    at::native_batch_norm(one, {}, {}, {}, {}, /*training=*/true, /*momentum=*/0, /*eps=*/1);
  });
  const Channels channels(input);
  const MaybeTensor weight = as_replica(given_weight, 1, input), bias = as_replica(given_bias, 2, input);
  if (!training) {
    const at::Tensor scale = scale_of(inverse_std(widened(*running_var), eps), weight);
    const at::Tensor from_mean = widened(*running_mean) * scale;
    const at::Tensor shift = is_given(bias) ? *bias - from_mean : from_mean.neg();
    const at::Tensor result = widened(input) * channels.spread(scale) + channels.spread(shift);
    return {in_torchs_order(result.to(input.scalar_type()), input), input.new_empty({0}), input.new_empty({0})};
  }
  const at::Tensor values = widened(reduced(input));
  const at::Tensor mean = reduced(channels.sum(values).div_(channels.n));
  at::Tensor result = values - channels.spread(mean);
  const at::Tensor variance = reduced(channels.sum(result.square()).div_(channels.n));
  const at::Tensor invstd = inverse_std(variance, eps);
  update(running_mean, mean, momentum);
  update(running_var, variance * (channels.n / (channels.n - 1)), momentum);
  result.mul_(channels.spread(scale_of(invstd, weight)));
  if (is_given(bias)) result.add_(channels.spread(*bias));
  const at::ScalarType dtype = statistics_dtype(input, weight);
  return {in_torchs_order(result.to(input.scalar_type()), input), mean.to(dtype), invstd.to(dtype)};
}

Three batch_norm_backward(const at::Tensor& grad, const at::Tensor& input, const MaybeTensor& weight,
                          const MaybeTensor& running_mean, const MaybeTensor& running_var, const MaybeTensor& save_mean,
                          const MaybeTensor& save_invstd, bool training, double eps, std::array<bool, 3> mask) {
  const Channels channels(input);
  const at::Tensor grads = widened(reduced(grad));
  const at::Tensor mean = widened(training ? *save_mean : *running_mean);
  const at::Tensor invstd = training ? widened(*save_invstd) : inverse_std(widened(*running_var), eps);
  const bool needs_sums = training && mask[0];
  const auto taken = [&](const at::Tensor& sum) { return needs_sums ? reduced(sum) : sum; };
  at::Tensor centered, sum, product, of_input, of_weight, of_bias;
  if (needs_sums || mask[1]) {
    centered = widened(reduced(input)) - channels.spread(mean);
    product = taken(channels.sum(grads * centered));
  }
  if (needs_sums || mask[2]) sum = taken(channels.sum(grads));
  if (mask[0]) {
    of_input = grads;
    if (training) {
      const at::Tensor slope = invstd.square() * product / channels.n;
      of_input = grads - channels.spread(sum / channels.n) - centered * channels.spread(slope);
    }
    of_input = (of_input * channels.spread(scale_of(invstd, weight))).to(input.scalar_type());
  }
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

void register_batch_norm(RuleTable& /*table*/) {
  aten_kernels().impl("native_batch_norm", &batch_norm);
  aten_kernels().impl("_native_batch_norm_legit", &batch_norm_legit);
  aten_kernels().impl("_native_batch_norm_legit.no_stats", &batch_norm_without_running);
  aten_kernels().impl("_batch_norm_with_update", &batch_norm_with_update);
  aten_kernels().impl("_batch_norm_no_update", &batch_norm_without_update);
  aten_kernels().impl("cudnn_batch_norm", &cudnn_batch_norm);
  aten_kernels().impl("native_batch_norm_backward", &batch_norm_backward);
  aten_kernels().impl("batch_norm_backward", &batch_norm_backward_with_reserve);
  aten_kernels().impl("cudnn_batch_norm_backward", &cudnn_batch_norm_backward);
  add_composition("instance_norm", &instance_norm);
}

}  // namespace shardwise
