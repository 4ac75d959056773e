// kernels/group_sum.h: the sum of the gradients of one group, column by column. For sources of this room.
#pragma once

#include "kernels/elements.h"

#include <algorithm>

namespace shardwise::kernels {

inline constexpr int64_t kBand = 256;  // columns summed at a time: what stays in the innermost cache

/// sum[c] = the gradients of a group's ids in column `first + c`, for c < n.
template <class T>
void sum_band(const GradRows& grads, const int64_t* order, int64_t n_ids, int64_t first, int64_t n, Sum<T>* sum) {
  const auto* data = static_cast<const T*>(grads.data);
  const auto* factors = static_cast<const Sum<T>*>(grads.factors);
  std::fill_n(sum, n, Sum<T>{0});
  for (int64_t k = 0; k < n_ids; ++k) {
    const int64_t id = order[k], row = grads.row_of == nullptr ? id : grads.row_of[id];
    const T* from = data + row * grads.step + first;
    if (grads.chosen != nullptr) {
      const int64_t* chosen = grads.chosen + row * grads.width + first;
      const Sum<T> factor = factors == nullptr ? 1 : factors[id];
      for (int64_t c = 0; c < n; ++c) sum[c] += chosen[c] == id ? factor * load(from[c]) : Sum<T>{0};
    } else if (factors != nullptr) {
      const Sum<T> factor = factors[id];
      for (int64_t c = 0; c < n; ++c) sum[c] += factor * load(from[c]);
    } else {
      for (int64_t c = 0; c < n; ++c) sum[c] += load(from[c]);
    }
  }
}

/// Asks for the gradient row of place `k` of the order.
template <class T>
void prefetch_grad(const GradRows& grads, const int64_t* order, int64_t k) {
  const int64_t row = grads.row_of == nullptr ? order[k] : grads.row_of[order[k]];
  prefetch(static_cast<const T*>(grads.data) + row * grads.step, grads.width * static_cast<int64_t>(sizeof(T)));
}

/// Calls `use(g, first, n, sum)` with the sums of each band of each group in [begin, end).
template <class T, class Use>
void for_each_sum(const GradRows& grads, const int64_t* order, const int64_t* starts, int64_t begin, int64_t end,
                  const Use& use) {
  alignas(64) Sum<T> sum[kBand];
  const int64_t n_places = begin < end ? starts[end] : 0;
  for (int64_t g = begin; g < end; ++g) {
    const int64_t n_ids = starts[g + 1] - starts[g];
    for (int64_t k = starts[g] + kAhead; k < std::min(starts[g + 1] + kAhead, n_places); ++k)
      prefetch_grad<T>(grads, order, k);
    for (int64_t first = 0; first < grads.width; first += kBand) {
      const int64_t n = std::min(kBand, grads.width - first);
      sum_band<T>(grads, order + starts[g], n_ids, first, n, sum);
      use(g, first, n, sum);
    }
  }
}

}  // namespace shardwise::kernels
