// kernels/update_steps.h: the steps of kernels/row_updates.h for one element, shared by the CPU and device kernels. Only for sources of
// these folders.
#pragma once

#include "kernels/row_updates.h"

#include <cmath>

namespace shardwise::kernels {

/// A RowUpdate in the type S of sums.
template <class S>
struct Rates {
  UpdateMethod method;
  S lr;
  S eps;
  S beta1;
  S beta2;
  S correction;
  S l2;
  S decay;
  S keep;  // factor of the row for decoupled weight decay

  SHARDWISE_ANYWHERE explicit Rates(const RowUpdate& update)
      : method(update.method),
        lr(static_cast<S>(update.lr)),
        eps(static_cast<S>(update.eps)),
        beta1(static_cast<S>(update.beta1)),
        beta2(static_cast<S>(update.beta2)),
        correction(static_cast<S>(update.correction)),
        l2(static_cast<S>(update.l2)),
        decay(static_cast<S>(update.decay)),
        keep(static_cast<S>(1 - update.lr * update.decay)) {}
};

/// Factors common to all elements of a row.
template <class S>
struct RowScale {
  S factor = 1;  // for row-wise kinds: 1 / (sqrt(number per row) + eps)
  S ratio = 1;   // for LAMB
};

/// The number per row after the step.
template <class S>
SHARDWISE_ANYWHERE S row_sum_after(const Rates<S>& rates, S before, S mean_square) {
  if (rates.method == UpdateMethod::kRowWiseAdagrad) return before + mean_square;
  return before + (1 - rates.beta2) * (mean_square - before);
}
template <class S>
SHARDWISE_ANYWHERE S factor_of(const Rates<S>& rates, S row_sum) {
  return 1 / (std::sqrt(row_sum) + rates.eps);
}

template <class S>
SHARDWISE_ANYWHERE S adagrad_step(const Rates<S>& rates, S grad, S& sum) {
  sum += grad * grad;
  return grad / (std::sqrt(sum) + rates.eps);
}
template <class S>
SHARDWISE_ANYWHERE void follow(S& moment, S value, S beta) {
  moment += (1 - beta) * (value - moment);
}
template <class S>
SHARDWISE_ANYWHERE S adam_step(const Rates<S>& rates, S grad, S& first, S& second) {
  follow(first, grad, rates.beta1);
  follow(second, grad * grad, rates.beta2);
  return rates.correction * first / (std::sqrt(second) + rates.eps);
}
template <class S>
SHARDWISE_ANYWHERE S row_wise_adam_step(const Rates<S>& rates, S grad, S& first, S factor) {
  follow(first, grad, rates.beta1);
  return rates.correction * first * factor;
}

/// The row's element after a step of any method except LAMB.
template <class S>
SHARDWISE_ANYWHERE S stepped(const Rates<S>& rates, S row, S step) {
  return rates.keep * row - rates.lr * step;
}
/// LAMB's u; below, the row's element after LAMB's step.
template <class S>
SHARDWISE_ANYWHERE S lamb_step(const Rates<S>& rates, S row, S step) {
  return step + rates.decay * row;
}
template <class S>
SHARDWISE_ANYWHERE S lamb_stepped(const Rates<S>& rates, S row, S step, S ratio) {
  return row - rates.lr * ratio * step;
}

}  // namespace shardwise::kernels
