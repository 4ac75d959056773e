#include "kernels/row_updates.h"

#include "kernels/group_sum.h"

#include <cmath>

namespace shardwise::kernels {
namespace {

template <class S>
S square_sum(const S* values, int64_t n) {
  S lanes[8] = {};
  int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += values[c + lane] * values[c + lane];
  for (; c < n; ++c) lanes[0] += values[c] * values[c];
  S sum = 0;
  for (const S lane : lanes) sum += lane;
  return sum;
}

/// row -= rate * grad.
template <class T>
void descend(T* row, int64_t n, const Sum<T>* grad, Sum<T> rate) {
  for (int64_t c = 0; c < n; ++c) row[c] = static_cast<T>(load(row[c]) - rate * grad[c]);
}

/// Prefetches what an update of row `row` writes: its elements and its state.
template <class T>
void prefetch_update(const Rows& table, const Sum<T>* first_state, const Sum<T>* second_state, int64_t row) {
  prefetch<true>(static_cast<T*>(table.data) + row * table.step, table.width * int64_t{sizeof(T)});
  for (const Sum<T>* state : {first_state, second_state})
    if (state != nullptr) prefetch<true>(state + row * table.width, table.width * int64_t{sizeof(Sum<T>)});
}

template <class T>
void adagrad(T* row, Sum<T>* squares, int64_t n, const Sum<T>* grad, const RowUpdate& update) {
  const auto lr = static_cast<Sum<T>>(update.lr), eps = static_cast<Sum<T>>(update.eps);
  for (int64_t c = 0; c < n; ++c) {
    squares[c] += grad[c] * grad[c];
    row[c] = static_cast<T>(load(row[c]) - lr * grad[c] / (std::sqrt(squares[c]) + eps));
  }
}

template <class T>
void adam(T* row, Sum<T>* first, Sum<T>* second, int64_t n, const Sum<T>* grad, const RowUpdate& update) {
  const auto lr = static_cast<Sum<T>>(update.lr), eps = static_cast<Sum<T>>(update.eps);
  const auto beta1 = static_cast<Sum<T>>(update.beta1), beta2 = static_cast<Sum<T>>(update.beta2);
  for (int64_t c = 0; c < n; ++c) {
    first[c] += (1 - beta1) * (grad[c] - first[c]);
    second[c] += (1 - beta2) * (grad[c] * grad[c] - second[c]);
    row[c] = static_cast<T>(load(row[c]) - lr * first[c] / (std::sqrt(second[c]) + eps));
  }
}

/// One sum of squares per row: the whole gradient of a row is needed before the row is updated.
template <class T>
void row_wise_adagrad(const Rows& table, Sum<T>* sums, const RowUpdate& update, const GradRows& grads,
                      const int64_t* order, const int64_t* starts, const int64_t* rows, const double* mean_squares,
                      int64_t begin, int64_t end) {
  const auto lr = static_cast<Sum<T>>(update.lr), eps = static_cast<Sum<T>>(update.eps);
  const auto rate_of = [&](int64_t g, Sum<T> mean) {
    Sum<T>& sum = sums[rows[g]];
    sum += mean;
    return lr / (std::sqrt(sum) + eps);
  };
  const auto go_down = [&](int64_t g, int64_t first, int64_t n, const Sum<T>* sum, Sum<T> rate) {
    descend(static_cast<T*>(table.data) + rows[g] * table.step + first, n, sum, rate);
  };
  constexpr int64_t kWhole = 256;
  if (const int64_t width = grads.width; mean_squares == nullptr && width <= kWhole) {
    alignas(64) Sum<T> whole[kWhole];
    for_each_sum<T>(grads, order, starts, begin, end, [&](int64_t g, int64_t first, auto n, const Sum<T>* sum) {
      std::copy_n(sum, static_cast<int64_t>(n), whole + first);
      if (first + n < width) return;
      if (g + kAhead < end) prefetch_update<T>(table, nullptr, nullptr, rows[g + kAhead]);
      go_down(g, 0, width, whole, rate_of(g, square_sum(whole, width) / static_cast<Sum<T>>(width)));
    });
    return;
  }
  for (int64_t g = begin; g < end; ++g) {
    double mean = 0;
    if (mean_squares != nullptr) {
      mean = mean_squares[g];
    } else {
      for_each_sum<T>(grads, order, starts, g, g + 1, [&](int64_t, int64_t, int64_t n, const Sum<T>* sum) {
        mean += static_cast<double>(square_sum(sum, n)) / static_cast<double>(grads.width);
      });
    }
    const Sum<T> rate = rate_of(g, static_cast<Sum<T>>(mean));
    for_each_sum<T>(grads, order, starts, g, g + 1,
                    [&](int64_t, int64_t first, int64_t n, const Sum<T>* sum) { go_down(g, first, n, sum, rate); });
  }
}

}  // namespace

SHARDWISE_KERNEL void grad_squares(const GradRows& grads, const int64_t* order, const int64_t* starts, double* results,
                                   int64_t begin, int64_t end) {
  with_element(grads.element, [&]<class T>(T) {
    std::fill(results + begin, results + end, 0.0);
    for_each_sum<T>(grads, order, starts, begin, end, [&](int64_t g, int64_t, int64_t n, const Sum<T>* sum) {
      results[g] += static_cast<double>(square_sum(sum, n));
    });
  });
}

SHARDWISE_KERNEL void update_rows(const Rows& table, const RowState& state, const RowUpdate& update,
                                  const GradRows& grads, const int64_t* order, const int64_t* starts,
                                  const int64_t* rows, const double* mean_squares, int64_t begin, int64_t end) {
  with_element(grads.element, [&]<class T>(T) {
    auto *first_state = static_cast<Sum<T>*>(state.first), *second_state = static_cast<Sum<T>*>(state.second);
    if (update.kind == RowUpdate::Kind::kRowWiseAdagrad)
      return row_wise_adagrad<T>(table, first_state, update, grads, order, starts, rows, mean_squares, begin, end);
    for_each_sum<T>(grads, order, starts, begin, end, [&](int64_t g, int64_t first, auto n, const Sum<T>* sum) {
      if (first == 0 && g + kAhead < end) prefetch_update<T>(table, first_state, second_state, rows[g + kAhead]);
      T* row = static_cast<T*>(table.data) + rows[g] * table.step + first;
      const int64_t at = rows[g] * table.width + first;
      if (update.kind == RowUpdate::Kind::kSgd)
        descend(row, n, sum, static_cast<Sum<T>>(update.lr));
      else if (update.kind == RowUpdate::Kind::kAdagrad)
        adagrad(row, first_state + at, n, sum, update);
      else
        adam(row, first_state + at, second_state + at, n, sum, update);
    });
  });
}

}  // namespace shardwise::kernels
