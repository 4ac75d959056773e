// kernels/cuda/row_updates.cu: sums of groups, applied to rows at once.
#include "kernels/cuda/group_sum.h"

namespace shardwise::kernels::cuda {
namespace {

template <class T, int kN>
__device__ double square_sum(const Sum<T> (&sum)[kN], const T*) {
  double squares = 0;
#pragma unroll
  for (int c = 0; c < kN; ++c) squares += static_cast<double>(sum[c] * sum[c]);
  return squares;
}

/// Keeps only the squares of each group.
template <class T>
struct Squares {
  double* results;
  double squares = 0;

  template <int kN>
  __device__ void take(int64_t, int64_t, int64_t, bool, const Sum<T> (&sum)[kN]) {
    squares += square_sum(sum, static_cast<const T*>(nullptr));
  }
  __device__ void end(int64_t group) {
    const double total = team_sum(squares);
    if (threadIdx.x == 0) results[group] = total;
  }
};

/// The constants of a RowUpdate in the type of sums.
template <class S>
struct Rates {
  S lr;
  S eps;
  S beta1;
  S beta2;
};

template <class T>
struct UpdatedRows {
  RowUpdate::Kind kind;
  Rates<Sum<T>> rates;
  T* table;
  int64_t step;
  int64_t width;
  Sum<T>* first;
  Sum<T>* second;
  const int64_t* rows;
  const double* squares;  // of row-wise Adagrad, to be divided by `n_squares`; null: of the sum, if it is a whole row
  double n_squares;
  Sum<T> rate = 0;  // of row-wise Adagrad, for the whole row

  template <int kN>
  __device__ void take(int64_t group, int64_t tile, int64_t column, bool is_in_row, const Sum<T> (&grad)[kN]) {
    const int64_t row = rows[group];
    if (kind == RowUpdate::Kind::kRowWiseAdagrad && tile == 0) find_rate(group, row, grad);
    if (!is_in_row) return;
    T* at = table + row * step + column;
    const auto before = load<kN>(at);
    Sum<T> after[kN];
#pragma unroll
    for (int c = 0; c < kN; ++c) after[c] = static_cast<Sum<T>>(before.at[c]);
    if (kind == RowUpdate::Kind::kSgd || kind == RowUpdate::Kind::kRowWiseAdagrad)
      descend(after, grad, kind == RowUpdate::Kind::kSgd ? rates.lr : rate);
    else if (kind == RowUpdate::Kind::kAdagrad)
      adagrad(after, grad, first + row * width + column);
    else
      adam(after, grad, first + row * width + column, second + row * width + column);
    store_sums(at, after);
  }
  __device__ void end(int64_t) const {}

 private:
  template <int kN>
  __device__ void find_rate(int64_t group, int64_t row, const Sum<T> (&grad)[kN]) {
    const double mean =
        (squares == nullptr ? team_sum(square_sum(grad, static_cast<const T*>(nullptr))) : squares[group]) / n_squares;
    const Sum<T> sum = team_first(threadIdx.x == 0 ? first[row] : Sum<T>{0}) + static_cast<Sum<T>>(mean);
    if (threadIdx.x == 0) first[row] = sum;
    rate = rates.lr / (sqrt(sum) + rates.eps);
  }

  template <int kN>
  __device__ void descend(Sum<T> (&row)[kN], const Sum<T> (&grad)[kN], Sum<T> by) const {
#pragma unroll
    for (int c = 0; c < kN; ++c) row[c] -= by * grad[c];
  }

  template <int kN>
  __device__ void adagrad(Sum<T> (&row)[kN], const Sum<T> (&grad)[kN], Sum<T>* sums) const {
    auto sum = load<kN>(sums);
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      sum.at[c] += grad[c] * grad[c];
      row[c] -= rates.lr * grad[c] / (sqrt(sum.at[c]) + rates.eps);
    }
    store<kN>(sums, sum);
  }

  template <int kN>
  __device__ void adam(Sum<T> (&row)[kN], const Sum<T> (&grad)[kN], Sum<T>* firsts, Sum<T>* seconds) const {
    auto m = load<kN>(firsts), v = load<kN>(seconds);
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      m.at[c] += (1 - rates.beta1) * (grad[c] - m.at[c]);
      v.at[c] += (1 - rates.beta2) * (grad[c] * grad[c] - v.at[c]);
      row[c] -= rates.lr * m.at[c] / (sqrt(v.at[c]) + rates.eps);
    }
    store<kN>(firsts, m);
    store<kN>(seconds, v);
  }
};

}  // namespace

void grad_squares(const GradRows& grads, const Groups& groups, double* results, void* scratch, void* stream) {
  const int64_t bytes = size_of(grads.element);
  const int64_t alignment = alignment_of({grads.data, scratch}, {grads.step * bytes, grads.width * bytes});
  if (grads.width == 0 && groups.n > 0)
    check(
        cudaMemsetAsync(results, 0, static_cast<size_t>(groups.n) * sizeof(double), static_cast<cudaStream_t>(stream)),
        "grad_squares");
  with_packs(grads.element, alignment, [&]<class T, int kN>(T, Columns<kN>) {
    for_each_sum<T, kN>("grad_squares", grads, groups, true, scratch, stream, Squares<T>{results});
  });
}

void update_rows(const Rows& table, const RowState& state, const RowUpdate& update, const GradRows& grads,
                 const Groups& groups, const int64_t* rows, const double* mean_squares, void* scratch, void* stream) {
  const int64_t bytes = size_of(grads.element);
  const int64_t alignment = alignment_of({grads.data, table.data, state.first, state.second, scratch},
                                         {grads.step * bytes, grads.width * bytes, table.step * bytes});
  const bool is_row_wise = update.kind == RowUpdate::Kind::kRowWiseAdagrad;
  with_packs(grads.element, alignment, [&]<class T, int kN>(T, Columns<kN>) {
    using S = Sum<T>;
    const double* squares = mean_squares;
    if (is_row_wise && mean_squares == nullptr && Teams(divided_up(grads.width, kN)).tiles > 1) {
      double* found =
          reinterpret_cast<double*>(static_cast<char*>(scratch) + sum_scratch(grads, groups.n_ids)) - groups.n_ids;
      grad_squares(grads, groups, found, scratch, stream);
      squares = found;
    }
    const Rates<S> rates{static_cast<S>(update.lr), static_cast<S>(update.eps), static_cast<S>(update.beta1),
                         static_cast<S>(update.beta2)};
    for_each_sum<T, kN>("update_rows", grads, groups, is_row_wise, scratch, stream,
                        UpdatedRows<T>{update.kind, rates, static_cast<T*>(table.data), table.step, table.width,
                                       static_cast<S*>(state.first), static_cast<S*>(state.second), rows, squares,
                                       mean_squares == nullptr ? static_cast<double>(grads.width) : 1.0});
  });
}

}  // namespace shardwise::kernels::cuda
