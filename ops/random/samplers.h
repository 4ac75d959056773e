// ops/random/samplers.h: samples of distributions that need more than one uniform number each.
//
// All are exact. Counts are reduced by order statistics (Ahrens and Dieter, Computer methods for sampling from gamma,
// beta, Poisson and binomial distributions, 1974) until few trials are left.
#pragma once

#include "runtime/api/philox.h"

namespace shardwise {

/// Gamma of shape `alpha` > 0 and scale 1 (Marsaglia and Tsang, A simple method for generating gamma variables, 2000).
double sample_gamma(double alpha, RandomStream& stream);

/// Poisson of mean `rate` >= 0.
double sample_poisson(double rate, RandomStream& stream);

/// The number of successes in `n` trials of probability `p`.
double sample_binomial(double n, double p, RandomStream& stream);

}  // namespace shardwise
