// kernels/cuda/row_updates.cu: sums of groups, applied to rows at once.
#include "kernels/cuda/group_sum.h"
#include "kernels/update_steps.h"

#include <algorithm>

namespace shardwise::kernels::cuda {
namespace {

/// The piece of a table with a single piece.
template <class S>
struct OnePiece {
  UpdatedPiece piece;
  Rates<S> rates;

  __device__ const UpdatedPiece* of(int64_t) const { return &piece; }
  __device__ const Rates<S>& rates_of(const UpdatedPiece&) const { return rates; }
};

/// The pieces of a table with several, in device memory.
template <class S>
struct SomePieces {
  const UpdatedPiece* pieces;
  int64_t n;

  /// The piece that has the row; null if none does. Cost: O(log n).
  __device__ const UpdatedPiece* of(int64_t row) const {
    int64_t low = 0, high = n;  // the last piece that begins at or before `row` is in [low - 1, high)
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (pieces[middle].table.first_row <= row)
        low = middle + 1;
      else
        high = middle;
    }
    return low > 0 && row_of(pieces[low - 1].table, row) >= 0 ? pieces + low - 1 : nullptr;
  }
  __device__ Rates<S> rates_of(const UpdatedPiece& piece) const { return Rates<S>(piece.update); }
};

/// RowTotals, or the sums computed in their place.
struct Totals {
  const double* squares = nullptr;  // sums of squares, to be divided by n_squares
  double n_squares = 1;
  const double* ratios = nullptr;
  const double* pairs = nullptr;  // from lamb_squares(), instead of ratios
};

template <class S, int kN>
__device__ double square_sum(const S (&values)[kN]) {
  double squares = 0;
#pragma unroll
  for (int c = 0; c < kN; ++c) squares += static_cast<double>(values[c] * values[c]);
  return squares;
}

/// Pointers to a row and its state, from a column on.
template <class T>
struct RowPlaces {
  using S = Sum<T>;
  int64_t row;
  T* at;
  S* first = nullptr;   // per element; null: none
  S* second = nullptr;  // per element; null: none
  S* number = nullptr;  // per row; null: none

  __device__ RowPlaces(const UpdatedPiece& piece, UpdateMethod method, int64_t group, int64_t number_of_row,
                       int64_t column)
      : row(number_of_row - piece.table.first_row),
        at(static_cast<T*>(piece.table.data) + row * piece.table.step + column) {
    auto *states = static_cast<S*>(piece.state.first), *seconds = static_cast<S*>(piece.state.second);
    if (is_row_wise(method)) {
      S*& numbers = has_moments(method) ? seconds : states;
      number = numbers + (piece.state.rows_are_groups ? group : row);
      numbers = nullptr;
    }
    const int64_t place = row * piece.table.width + column;
    if (states != nullptr) first = states + place;
    if (seconds != nullptr) second = seconds + place;
  }
};

/// One team's columns of a row, its gradient including l2 * row, and its state.
template <class T, int kN>
struct RowColumns : RowPlaces<T> {
  using S = Sum<T>;
  using RowPlaces<T>::at, RowPlaces<T>::first, RowPlaces<T>::second, RowPlaces<T>::number;
  S values[kN] = {};
  S grad[kN];
  Pack<S, kN> moments[2];

  __device__ RowColumns(const UpdatedPiece& piece, const Rates<S>& rates, int64_t group, int64_t number_of_row,
                        int64_t column, bool is_in_row, const S (&sum)[kN])
      : RowPlaces<T>(piece, rates.method, group, number_of_row, column) {
    if (is_in_row) {
      const auto before = load<kN>(at);
#pragma unroll
      for (int c = 0; c < kN; ++c) values[c] = static_cast<S>(before.at[c]);
      if (first != nullptr) moments[0] = load<kN>(first);
      if (second != nullptr) moments[1] = load<kN>(second);
    }
#pragma unroll
    for (int c = 0; c < kN; ++c) grad[c] = rates.l2 == 0 ? sum[c] : sum[c] + rates.l2 * values[c];
  }

  /// The number per row after the step, the same for all threads of the team.
  __device__ S number_after(const Rates<S>& rates, const Totals& totals, int64_t group) const {
    const double squares = totals.squares == nullptr ? team_sum(square_sum(grad)) : totals.squares[group];
    const S before = team_first(threadIdx.x == 0 ? *number : S{0});
    return row_sum_after(rates, before, static_cast<S>(squares / totals.n_squares));
  }

  /// Takes Adam's step for a column, which changes `moments`.
  __device__ S adams_step(const Rates<S>& rates, int c, S factor) {
    return is_row_wise(rates.method) ? row_wise_adam_step(rates, grad[c], moments[0].at[c], factor)
                                     : adam_step(rates, grad[c], moments[0].at[c], moments[1].at[c]);
  }

  /// Adds the squares of these columns and of LAMB's step there. Pre: the moments are unchanged.
  __device__ void add_lamb_squares(const Rates<S>& rates, S factor, bool is_in_row, double (&squares)[2]) const {
    if (!is_in_row) return;
    RowColumns copy = *this;
    S steps[kN];
#pragma unroll
    for (int c = 0; c < kN; ++c) steps[c] = lamb_step(rates, values[c], copy.adams_step(rates, c, factor));
    squares[0] += square_sum(values);
    squares[1] += square_sum(steps);
  }
};

/// Prefetches a group's row and its state.
template <class T, class Source>
__device__ void prefetch_row(const Source& source, int64_t group, int64_t number_of_row) {
  const UpdatedPiece* piece = source.of(number_of_row);
  if (piece == nullptr) return;
  const RowPlaces<T> places(*piece, piece->update.method, group, number_of_row, 0);
  const int64_t width = piece->table.width, sum_bytes = sizeof(Sum<T>);
  kernels::cuda::prefetch(places.at, width * int64_t{sizeof(T)});
  if (places.first != nullptr) kernels::cuda::prefetch(places.first, width * sum_bytes);
  if (places.second != nullptr) kernels::cuda::prefetch(places.second, width * sum_bytes);
  if (places.number != nullptr) kernels::cuda::prefetch(places.number, sum_bytes);
}

/// A sink that only stores the sum of squares of each group.
template <class T, class Source>
struct SquaresOf {
  Source source;
  const int64_t* rows;
  double* results;
  double squares = 0;

  __device__ void prefetch(int64_t group) const { prefetch_row<T>(source, group, rows[group]); }
  template <int kN>
  __device__ void take(int64_t group, int64_t, int64_t column, bool is_in_row, const Sum<T> (&sum)[kN]) {
    const UpdatedPiece* piece = source.of(rows[group]);
    if (piece == nullptr) return;
    if (piece->update.l2 == 0) {
      squares += square_sum(sum);
      return;
    }
    const auto& rates = source.rates_of(*piece);
    squares += square_sum(RowColumns<T, kN>(*piece, rates, group, rows[group], column, is_in_row, sum).grad);
  }
  __device__ void end(int64_t group) {
    const double total = team_sum(squares);
    if (threadIdx.x == 0) results[group] = total;
  }
};

/// A sink that only stores the sums of squares of rows and of LAMB's steps.
template <class T, class Source>
struct LambSquares {
  Source source;
  const int64_t* rows;
  Totals totals;
  double* results;
  double squares[2] = {0, 0};
  Sum<T> factor = 1;

  __device__ void prefetch(int64_t group) const { prefetch_row<T>(source, group, rows[group]); }
  template <int kN>
  __device__ void take(int64_t group, int64_t tile, int64_t column, bool is_in_row, const Sum<T> (&sum)[kN]) {
    const UpdatedPiece* piece = source.of(rows[group]);
    if (piece == nullptr || !is_lamb(piece->update.method)) return;
    const auto& rates = source.rates_of(*piece);
    const RowColumns<T, kN> columns(*piece, rates, group, rows[group], column, is_in_row, sum);
    if (tile == 0 && is_row_wise(rates.method)) factor = factor_of(rates, columns.number_after(rates, totals, group));
    columns.add_lamb_squares(rates, factor, is_in_row, squares);
  }
  __device__ void end(int64_t group) {
    const double of_row = team_sum(squares[0]), of_step = team_sum(squares[1]);
    if (threadIdx.x > 0) return;
    results[2 * group] = of_row;
    results[2 * group + 1] = of_step;
  }
};

template <class T, class Source>
struct UpdatedRows {
  using S = Sum<T>;
  Source source;
  const int64_t* rows;
  Totals totals;
  RowScale<S> scale = {};  // of the whole row

  __device__ void prefetch(int64_t group) const { prefetch_row<T>(source, group, rows[group]); }
  template <int kN>
  __device__ void take(int64_t group, int64_t tile, int64_t column, bool is_in_row, const S (&sum)[kN]) {
    const UpdatedPiece* piece = source.of(rows[group]);
    if (piece == nullptr) return;
    const auto& rates = source.rates_of(*piece);
    RowColumns<T, kN> columns(*piece, rates, group, rows[group], column, is_in_row, sum);
    if (tile == 0) find_scale(rates, columns, group, is_in_row);
    if (!is_in_row) return;
#pragma unroll
    for (int c = 0; c < kN; ++c) columns.values[c] = after(rates, columns, c);
    if (columns.first != nullptr) store<kN>(columns.first, columns.moments[0]);
    if (columns.second != nullptr) store<kN>(columns.second, columns.moments[1]);
    if constexpr (sizeof(T) == 2)
      if (piece->update.rounding.is_on) round_at_random(piece->update.rounding, columns.row, column, columns.values);
    store_sums(columns.at, columns.values);
  }
  __device__ void end(int64_t) const {}

 private:
  template <int kN>
  __device__ void find_scale(const Rates<S>& rates, const RowColumns<T, kN>& columns, int64_t group, bool is_in_row) {
    if (is_row_wise(rates.method)) {
      const S number = columns.number_after(rates, totals, group);
      if (threadIdx.x == 0) *columns.number = number;
      scale.factor = factor_of(rates, number);
    }
    if (!is_lamb(rates.method)) return;
    if (totals.ratios != nullptr) {
      scale.ratio = static_cast<S>(totals.ratios[group]);
    } else if (totals.pairs != nullptr) {
      scale.ratio = static_cast<S>(trust_ratio(totals.pairs[2 * group], totals.pairs[2 * group + 1]));
    } else {
      double squares[2] = {0, 0};
      columns.add_lamb_squares(rates, scale.factor, is_in_row, squares);
      const double of_row = team_sum(squares[0]), of_step = team_sum(squares[1]);
      scale.ratio = static_cast<S>(trust_ratio(of_row, of_step));
    }
  }

  template <int kN>
  __device__ S after(const Rates<S>& rates, RowColumns<T, kN>& columns, int c) const {
    const S row = columns.values[c], grad = columns.grad[c];
    switch (rates.method) {
      case UpdateMethod::kSgd:
        return stepped(rates, row, grad);
      case UpdateMethod::kAdagrad:
        return stepped(rates, row, adagrad_step(rates, grad, columns.moments[0].at[c]));
      case UpdateMethod::kRowWiseAdagrad:
        return stepped(rates, row, grad * scale.factor);
      case UpdateMethod::kAdam:
      case UpdateMethod::kRowWiseAdam:
        return stepped(rates, row, columns.adams_step(rates, c, scale.factor));
      default:
        return lamb_stepped(rates, row, lamb_step(rates, row, columns.adams_step(rates, c, scale.factor)), scale.ratio);
    }
  }

  template <int kN>
  __device__ static void round_at_random(const StochasticRounding& rounding, int64_t row, int64_t first,
                                         float (&values)[kN]) {
    RandomBits bits;
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      const int64_t column = rounding.first_column + first + c;
      if (c == 0 || column % RandomBits::kColumns == 0) bits = random_bits(rounding, rounding.first_row + row, column);
      values[c] = std::is_same_v<T, __half> ? rounded_to_half(values[c], bits.of(column))
                                            : rounded_to_bfloat16(values[c], bits.of(column));
    }
  }
};

/// The place in sum_scratch() for numbers per group, of which there are three.
double* numbers_in(void* scratch, const GradRows& grads, int64_t n_ids) {
  return reinterpret_cast<double*>(static_cast<char*>(scratch) + sum_scratch(grads, n_ids)) - 3 * n_ids;
}

int64_t alignment_of_all(const UpdatedPieces& pieces, const GradRows& grads, const void* scratch) {
  const int64_t bytes = size_of(grads.element);
  int64_t alignment = alignment_of({grads.data, scratch}, {grads.step * bytes, grads.width * bytes});
  for (int64_t p = 0; p < pieces.n; ++p) {
    const UpdatedPiece& piece = pieces.here[p];
    alignment = std::min(
        alignment, alignment_of({piece.table.data, piece.state.first, piece.state.second}, {piece.table.step * bytes}));
  }
  return alignment;
}

/// The sums of squares of gradients and LAMB's steps, for rows too wide to compute them within the update.
template <class T, int kN, class Source>
Totals found_totals(const Source& source, bool any_row_wise, bool any_lamb, const GradRows& grads, const Groups& groups,
                    const int64_t* rows, const RowTotals& given, void* scratch, void* stream) {
  Totals totals{given.mean_squares, given.mean_squares == nullptr ? static_cast<double>(grads.width) : 1.0,
                given.ratios};
  if (Teams(divided_up(grads.width, kN)).tiles <= 1) return totals;
  double* found = numbers_in(scratch, grads, groups.n_ids);
  if (any_row_wise && given.mean_squares == nullptr) {
    for_each_sum<T, kN>("grad_squares", grads, groups, true, scratch, stream,
                        SquaresOf<T, Source>{source, rows, found});
    totals.squares = found;
  }
  if (any_lamb && given.ratios == nullptr) {
    for_each_sum<T, kN>("lamb_squares", grads, groups, true, scratch, stream,
                        LambSquares<T, Source>{source, rows, totals, found + groups.n_ids});
    totals.pairs = found + groups.n_ids;
  }
  return totals;
}

}  // namespace

void grad_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  double* results, void* scratch, void* stream) {
  with_packs(grads.element, alignment_of_all({&piece, 1}, grads, scratch), [&]<class T, int kN>(T, Columns<kN>) {
    using S = Sum<T>;
    for_each_sum<T, kN>("grad_squares", grads, groups, true, scratch, stream,
                        SquaresOf<T, OnePiece<S>>{{piece, Rates<S>(piece.update)}, rows, results});
  });
}

void lamb_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  const RowTotals& totals, double* results, void* scratch, void* stream) {
  with_packs(grads.element, alignment_of_all({&piece, 1}, grads, scratch), [&]<class T, int kN>(T, Columns<kN>) {
    using S = Sum<T>;
    const OnePiece<S> source{piece, Rates<S>(piece.update)};
    Totals found = found_totals<T, kN>(source, is_row_wise(piece.update.method), false, grads, groups, rows, totals,
                                       scratch, stream);
    for_each_sum<T, kN>("lamb_squares", grads, groups, true, scratch, stream,
                        LambSquares<T, OnePiece<S>>{source, rows, found, results});
  });
}

void update_rows(const UpdatedPieces& pieces, const GradRows& grads, const Groups& groups, const int64_t* rows,
                 const RowTotals& totals, void* scratch, void* stream) {
  const auto any = [&](bool (*is_so)(UpdateMethod)) {
    return std::any_of(pieces.here, pieces.here + pieces.n,
                       [&](const UpdatedPiece& piece) { return is_so(piece.update.method); });
  };
  const bool any_row_wise = any([](UpdateMethod method) { return is_row_wise(method); });
  const bool any_lamb = any([](UpdateMethod method) { return is_lamb(method); });
  with_packs(grads.element, alignment_of_all(pieces, grads, scratch), [&]<class T, int kN>(T, Columns<kN>) {
    using S = Sum<T>;
    const auto update = [&](const auto& source) {
      const Totals found =
          found_totals<T, kN>(source, any_row_wise, any_lamb, grads, groups, rows, totals, scratch, stream);
      for_each_sum<T, kN>("update_rows", grads, groups, any_row_wise || any_lamb, scratch, stream,
                          UpdatedRows<T, std::decay_t<decltype(source)>>{source, rows, found});
    };
    if (pieces.n == 1)
      update(OnePiece<S>{pieces.here[0], Rates<S>(pieces.here[0].update)});
    else if (pieces.n > 1)
      update(SomePieces<S>{pieces.there, pieces.n});
  });
}

}  // namespace shardwise::kernels::cuda
