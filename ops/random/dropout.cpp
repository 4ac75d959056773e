// ops/random/dropout.cpp: dropout. The seed and an element's global index decide whether it is dropped, so replicas
// agree and shards differ.
#include "ops/families.h"
#include "ops/support/plain_self.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"

#include <ATen/Functions.h>

#include <cmath>
#include <numeric>

namespace shardwise {
namespace {

void check_share(double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  check_share(p);
  const at::TensorOptions of_mask = input.options().dtype(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, of_mask)};
  const at::Tensor kept = at::empty_like(input, of_mask).bernoulli_(1 - p);
  return {input.mul(kept).mul_(p == 1 ? 0 : 1 / (1 - p)), kept};
}

/// One number per sample and channel, 1 where the channel is kept; sharded along these dims as `input`.
at::Tensor kept_features(const at::Tensor& input, double p) {
  TORCH_CHECK(input.dim() >= 2, "Feature dropout requires at least 2 dimensions in the input");
  Dims sizes(input.dim(), 1), spatial(input.dim() - 2);
  std::iota(spatial.begin(), spatial.end(), 2);
  Placements placements = without_partial(whole_along(spec_of(input)->placements(), spatial));
  sizes[0] = input.size(0);
  sizes[1] = input.size(1);
  const at::NoGradGuard no_grad;
  return empty(sizes, spec_of(input)->mesh(), std::move(placements), input.scalar_type()).bernoulli_(1 - p);
}

/// Values are multiplied by `scale`, 0 where they are dropped. `shift` is added for alpha dropout, which keeps mean and
/// deviation (Klambauer et al., Self-normalizing neural networks, 2017).
struct Noise {
  at::Tensor scale, shift;

  at::Tensor applied(const at::Tensor& input) const {
    const at::Tensor result = input.mul(scale);
    return shift.defined() ? result.add(shift) : result;
  }
  at::Tensor& apply(at::Tensor& input) const {
    input.mul_(scale);
    return shift.defined() ? input.add_(shift) : input;
  }
};

Noise plain_noise(const at::Tensor& input, double p) {
  at::Tensor kept = kept_features(input, p);
  return {p == 1 ? kept : kept.div_(1 - p), {}};
}

Noise alpha_noise(const at::Tensor& input, double p) {
  at::Tensor kept = kept_features(input, p);
  if (p == 1) return {kept, {}};
  constexpr double kAlpha = 1.7580993408473766;  // SELU saturates at -kAlpha
  const double scale = 1 / std::sqrt((kAlpha * kAlpha * p + 1) * (1 - p));
  const at::Tensor shift = kept.sub(1).mul_(kAlpha * scale).add_(kAlpha * scale * p);
  return {kept.mul_(scale), shift};
}

using MakeNoise = Noise (*)(const at::Tensor&, double);

template <MakeNoise make>
at::Tensor feature_dropout(const at::Tensor& input, double p, bool train) {
  check_share(p);
  return p == 0 || !train || input.numel() == 0 ? input : make(input, p).applied(input);
}

template <MakeNoise make>
at::Tensor& feature_dropout_(at::Tensor& input, double p, bool train) {
  check_share(p);
  return p == 0 || !train || input.numel() == 0 ? input : make(input, p).apply(input);
}

/// Writes to `noise` the slope for each value of at most 0, and 1 for positive values.
at::Tensor randomised_relu(const at::Tensor& self, at::Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
                           bool training, std::optional<at::Generator> generator) {
  TORCH_CHECK(self.sym_sizes() == noise.sym_sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sizes(),
              " noise.shape = ", noise.sizes());
  const double low = lower.toDouble(), high = upper.toDouble();
  TORCH_CHECK(low <= high, "Lower bound should be less than or equal to the upper bound");
  if (!training) return at::leaky_relu(self, (low + high) / 2);
  const at::Tensor slopes = at::empty_like(self).uniform_(low, high, std::move(generator));
  noise.copy_(at::where(self.le(0), slopes, 1));
  return self.mul(noise);
}

}  // namespace

void register_dropout(RuleTable& table) {
  table.keep_symbols({"aten::native_dropout"});
  aten_kernels().impl("native_dropout", &native_dropout);
  add_composition("feature_dropout", &feature_dropout<&plain_noise>);
  add_composition("feature_dropout_", &feature_dropout_<&plain_noise>);
  add_composition("feature_alpha_dropout", &feature_dropout<&alpha_noise>);
  add_composition("feature_alpha_dropout_", &feature_dropout_<&alpha_noise>);
  aten_kernels().impl("rrelu_with_noise", &randomised_relu);
  aten_kernels().impl("rrelu_with_noise_", &CopiedBack<&randomised_relu>::write);
  table.add("aten::rrelu_with_noise_backward", pointwise().linear_in_first());
}

}  // namespace shardwise
