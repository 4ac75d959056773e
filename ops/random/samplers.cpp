#include "ops/random/samplers.h"

#include <cmath>

namespace shardwise {
namespace {

/// Up to this many expected events or trials are drawn one by one.
constexpr double kFew = 16;

}  // namespace

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

}  // namespace shardwise
