// ops/random/random_values.cpp: random numbers with tensor parameters: bernoulli, normal, poisson, multinomial, ...
#include "ops/families.h"
#include "ops/random/random_fill.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/philox.h"
#include "runtime/api/random.h"
#include "text/check.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>

#include <cmath>
#include <limits>

namespace shardwise {
namespace {

// The samples of distributions that need more than one uniform number each are exact. Counts are reduced by order statistics (Ahrens and Dieter,
// Computer methods for sampling from gamma, beta, Poisson and binomial distributions, 1974) until few trials are left.

/// Up to this many expected events or trials are drawn one by one.
constexpr double kFew = 16;

/// Gamma of shape `alpha` > 0 and scale 1 (Marsaglia and Tsang, A simple method for generating gamma variables, 2000).
double sample_gamma(double alpha, RandomStream& stream) {
  if (!(alpha > 0)) return alpha == 0 ? 0 : NAN;  // NaN gives NaN
  if (std::isinf(alpha)) return alpha;
  if (alpha < 1) {
    const double larger = sample_gamma(alpha + 1, stream);
    return larger * std::pow(1 - stream.uniform(), 1 / alpha);
  }
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = stream.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log1p(-stream.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

/// The number of successes in `n` trials of probability `p`.
double sample_binomial(double n, double p, RandomStream& stream) {
  if (std::isnan(n) || std::isnan(p)) return NAN;
  double successes = 0;
  while (n > kFew && p > 0 && p < 1) {
    // Draw the median of n uniform numbers: p lies on one side of it, and the trials on the other side are decided.
    const double middle = std::floor(n / 2) + 1;
    const double below = sample_gamma(middle, stream), above = sample_gamma(n + 1 - middle, stream);
    const double place = below / (below + above);
    if (place > p) {
      n = middle - 1;
      p /= place;
    } else {
      successes += middle;
      n -= middle;
      p = (p - place) / (1 - place);
    }
  }
  if (p <= 0) return successes;
  if (p >= 1) return successes + std::floor(n);
  for (double trial = 1; trial <= n; ++trial) successes += stream.uniform() < p;
  return successes;
}

/// Poisson of mean `rate` >= 0.
double sample_poisson(double rate, RandomStream& stream) {
  if (std::isnan(rate)) return NAN;
  double events = 0;
  while (rate > kFew) {
    // Draw the time of event m. If it is within the rate, continue from there; else the events before it are uniform in time.
    const double m = std::floor(rate * 7 / 8);
    const double time = sample_gamma(m, stream);
    if (time > rate) return events + sample_binomial(m - 1, rate / time, stream);
    events += m;
    rate -= time;
  }
  for (double left = -rate + -std::log1p(-stream.uniform()); left <= 0; left += -std::log1p(-stream.uniform()))
    ++events;
  return events;
}

// Parameter values are checked on all ranks together, by an all-reduce of one bool.

void check_probabilities(const char* op, const at::Tensor& p) {
  SW_CHECK(!any_anywhere(p.lt(0).logical_or_(p.gt(1)).logical_or_(p.isnan())),
           "[{}] Expected p_in >= 0 && p_in <= 1 to be true, but got false: some p is not a probability. Use values in "
           "[0, 1].",
           op);
}

/// Uniform in [0, 1), as doubles: rounding to a narrower dtype would bias a comparison.
at::Tensor uniform_like(const at::Tensor& self, MaybeGenerator generator) {
  return at::empty_like(self, self.options().dtype(at::kDouble)).uniform_(0, 1, std::move(generator));
}

at::Tensor& bernoulli_tensor_(at::Tensor& self, const at::Tensor& p, MaybeGenerator generator) {
  SW_CHECK_NOT_IMPLEMENTED(
      at::isFloatingType(p.scalar_type()),
      "[aten::bernoulli_] is not implemented for probabilities of {}. Convert them to a floating dtype.",
      c10::toString(p.scalar_type()));
  if (is_dtensor(p)) check_probabilities("aten::bernoulli_", p);
  return self.copy_(at::lt(uniform_like(self, std::move(generator)), p));
}

void check_deviation(const at::Tensor& std) {
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  TORCH_CHECK(!is_dtensor(std) || !any_anywhere(std.lt(0)), "normal expects all elements of std >= 0.0");
}

/// Normal numbers with the layout and sizes of `like` and the dtype of `dtype_of`.
at::Tensor standard_normal(const at::Tensor& like, const at::Tensor& dtype_of, MaybeGenerator generator) {
  return at::empty_like(like, like.options().dtype(dtype_of.scalar_type())).normal_(0, 1, std::move(generator));
}

at::Tensor normal_tensors(const at::Tensor& mean, const at::Tensor& std, MaybeGenerator generator) {
  check_deviation(std);
  return standard_normal(at::add(mean, std), mean, std::move(generator)).mul(std).add(mean).to(mean.scalar_type());
}

at::Tensor normal_mean(const at::Tensor& mean, double std, MaybeGenerator generator) {
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
  return standard_normal(mean, mean, std::move(generator)).mul_(std).add(mean);
}

at::Tensor normal_deviation(double mean, const at::Tensor& std, MaybeGenerator generator) {
  check_deviation(std);
  return standard_normal(std, std, std::move(generator)).mul(std).add(mean);
}

/// `sample(parameters, index, random stream)` for each element; the layout is that of the parameters' broadcast sum.
template <class Sample>
at::Tensor sampled(const at::TensorList parameters, at::ScalarType dtype, const MaybeGenerator& generator,
                   const Sample& sample) {
  at::Tensor like = parameters[0];
  for (size_t i = 1; i < parameters.size(); ++i) like = at::add(like, parameters[i]);
  at::Tensor result = at::empty_like(like, like.options().dtype(dtype));
  const Spec& spec = *spec_of(result);
  std::vector<at::Tensor> moved;
  for (const at::Tensor& parameter : parameters)
    moved.push_back(moved_to(parameter.expand_as(result), spec.placements().vec()));
  if (result.is_meta()) return result;

  const uint64_t seed = next_seed(*spec.mesh(), generator);
  const Shards& pieces = maybe_dtensor(result)->shards();
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    std::vector<at::Tensor> inputs;
    std::vector<const double*> data;
    for (const at::Tensor& parameter : moved)
      inputs.push_back(maybe_dtensor(parameter)->shards()[piece].to(at::kCPU, at::kDouble).contiguous());
    for (const at::Tensor& input : inputs) data.push_back(input.const_data_ptr<double>());
    const at::Tensor values = at::empty(inputs[0].sizes(), at::kDouble);
    double* const out = values.mutable_data_ptr<double>();
    each_run(spec.sizes(), spec.boxes()[piece], [&](uint64_t first, int64_t place, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        RandomStream stream(seed, first + i);
        out[place + i] = sample(data, place + i, stream);
      }
    });
    pieces[piece].copy_(values);
  }
  return result;
}

at::Tensor poisson(const at::Tensor& self, MaybeGenerator generator) {
  TORCH_CHECK(!any_anywhere(self.lt(0)), "invalid Poisson rate, expected rate to be non-negative");
  return sampled({self}, self.scalar_type(), generator,
                 [](const auto& of, int64_t i, RandomStream& stream) { return sample_poisson(of[0][i], stream); });
}

at::Tensor binomial(const at::Tensor& count, const at::Tensor& prob, MaybeGenerator generator) {
  return sampled({count, prob}, count.scalar_type(), generator, [](const auto& of, int64_t i, RandomStream& stream) {
    return sample_binomial(of[0][i], of[1][i], stream);
  });
}

/// The smallest positive number: rounding must not give 0.
double smallest_of(at::ScalarType dtype) {
  double smallest = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "_standard_gamma",
                                  [&] { smallest = static_cast<double>(std::numeric_limits<scalar_t>::min()); });
  return smallest;
}

at::Tensor gamma_in(at::ScalarType dtype, const at::Tensor& alpha, const MaybeGenerator& generator) {
  const double smallest = smallest_of(dtype);
  return sampled({alpha}, dtype, generator, [=](const auto& of, int64_t i, RandomStream& stream) {
    return std::max(sample_gamma(of[0][i], stream), smallest);
  });
}

at::Tensor standard_gamma(const at::Tensor& self, MaybeGenerator generator) {
  return gamma_in(self.scalar_type(), self, generator);
}

at::Tensor sample_dirichlet(const at::Tensor& self, MaybeGenerator generator) {
  const at::Tensor parts = gamma_in(at::kDouble, self, generator);
  return at::div(parts, parts.sum(-1, /*keepdim=*/true))
      .clamp_(smallest_of(self.scalar_type()), 1)
      .to(self.scalar_type());
}

void check_multinomial(const at::Tensor& self, int64_t n_samples, bool replacement) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(n_samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || n_samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  const at::Tensor is_wrong = self.lt(0).logical_or_(self.isfinite().logical_not_());
  TORCH_CHECK(!any_anywhere(is_wrong), "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(!any_anywhere(self.sum(-1).le(0)), "invalid multinomial distribution (sum of probabilities <= 0)");
}

/// Samples by the position of uniform numbers in the running sums of each row. Rows stay sharded.
at::Tensor with_replacement(const at::Tensor& self, int64_t n_samples, const MaybeGenerator& generator) {
  const Placements rows = without_partial(whole_along(spec_of(self)->placements(), self.dim() - 1));
  const at::Tensor whole = moved_to(self.to(at::kDouble), rows);
  Dims sizes(self.sizes());
  sizes.back() = n_samples;
  at::Tensor places = empty(sizes, spec_of(self)->mesh(), rows, at::kDouble);
  places.uniform_(0, 1, generator);
  const at::Tensor chosen = at::empty_like(places, places.options().dtype(at::kLong));
  for (size_t i = 0; i < maybe_dtensor(whole)->shards().size(); ++i) {
    const at::Tensor sums = maybe_dtensor(whole)->shards()[i].cumsum(-1);
    const at::Tensor total = sums.narrow(-1, sums.size(-1) - 1, 1);
    // The sought value stays below the total even if the product is rounded up, so that the last category is the highest.
    const at::Tensor sought = (maybe_dtensor(places)->shards()[i] * total).clamp_max(total * (1 - 0x1p-52));
    maybe_dtensor(chosen)->shards()[i].copy_(
        at::searchsorted(sums.contiguous(), sought.contiguous(), /*out_int32=*/false, /*right=*/true));
  }
  return chosen;
}

/// Without replacement: the categories with the earliest of one exponential arrival time each.
at::Tensor multinomial(const at::Tensor& self, int64_t n_samples, bool replacement, MaybeGenerator generator) {
  check_multinomial(self, n_samples, replacement);
  if (replacement && n_samples > 1) return with_replacement(self, n_samples, generator);
  const at::Tensor times = at::empty_like(self, self.options().dtype(at::kDouble));
  const at::Tensor rates = self.to(at::kDouble).div(times.exponential_(1, std::move(generator)));
  return n_samples == 1 ? at::argmax(rates, -1, /*keepdim=*/true) : std::get<1>(at::topk(rates, n_samples));
}

}  // namespace

void register_random_values(RuleTable& table) {
  auto& kernels = aten_kernels();
  kernels.impl("bernoulli_.Tensor", &bernoulli_tensor_);
  add_torch_compositions({"bernoulli", "bernoulli.Tensor"});
  kernels.impl("normal.Tensor_Tensor", &normal_tensors);
  kernels.impl("normal.Tensor_float", &normal_mean);
  kernels.impl("normal.float_Tensor", &normal_deviation);
  kernels.impl("poisson", &poisson);
  kernels.impl("binomial", &binomial);
  kernels.impl("_standard_gamma", &standard_gamma);
  kernels.impl("_sample_dirichlet", &sample_dirichlet);
  kernels.impl("multinomial", &multinomial);
  table.add({"aten::_standard_gamma_grad", "aten::_dirichlet_grad"}, pointwise());
}

}  // namespace shardwise
