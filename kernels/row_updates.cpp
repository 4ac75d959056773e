#include "kernels/row_updates.h"

#include "kernels/group_sum.h"
#include "kernels/update_steps.h"

#include <utility>
#include <vector>

namespace shardwise::kernels {
namespace {

constexpr int64_t kChanged = 64;  // columns that change at a time; no column block has more

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

template <class T>
T round_to(float value, uint32_t random) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return static_cast<T>(rounded_to_bfloat16(value, random));
  else
    return static_cast<T>(rounded_to_half(value, random));
}

/// A piece and its update, for the type of its elements.
template <class T>
class Updater {
  using S = Sum<T>;

 public:
  explicit Updater(const UpdatedPiece& piece)
      : table_(piece.table),
        rates_(piece.update),
        rounding_(piece.update.rounding),
        rows_are_groups_(piece.state.rows_are_groups),
        first_(static_cast<S*>(piece.state.first)),
        second_(static_cast<S*>(piece.state.second)) {
    if (is_row_wise(rates_.method)) row_sums_ = std::exchange(has_moments(rates_.method) ? second_ : first_, nullptr);
  }

  /// Prefetches the memory that an update of `row` writes: its elements and its state.
  void prefetch_row(int64_t row) const {
    prefetch<true>(row_at(row), table_.width * int64_t{sizeof(T)});
    for (const S* state : {first_, second_})
      if (state != nullptr) prefetch<true>(state + row * table_.width, table_.width * int64_t{sizeof(S)});
  }

  /// Changes n columns of a row, for kinds whose step of an element depends on that element alone.
  template <class N>
  void change(int64_t row, int64_t first, N n, const S* grad) const {
    with_values(row, first, n, [&](S* values) {
      S decayed[kChanged];
      if (rates_.l2 != 0)
        for (int64_t c = 0; c < n; ++c) decayed[c] = grad[c] + rates_.l2 * values[c];
      step<false>(values, row * table_.width + first, n, rates_.l2 == 0 ? grad : decayed, {});
    });
  }

  /// Adds l2 * row to the gradient of a whole row, or of the columns that the piece has.
  void add_l2(int64_t row, S* grad) const {
    if (rates_.l2 == 0) return;
    const T* values = row_at(row);
    for (int64_t c = 0; c < table_.width; ++c) grad[c] += rates_.l2 * load(values[c]);
  }

  /// Changes a row and its number per row, with the gradient from add_l2().
  void change_whole(int64_t g, int64_t row, const S* grad, const RowTotals& totals) const {
    RowScale<S> scale;
    if (is_row_wise(rates_.method)) {
      const S sum = sum_after(g, row, grad, totals);
      row_sums_[rows_are_groups_ ? g : row] = sum;
      scale.factor = factor_of(rates_, sum);
    }
    if (is_lamb(rates_.method)) {
      double squares[2];
      if (totals.ratios == nullptr) find_lamb_squares(row, grad, scale.factor, squares);
      scale.ratio = static_cast<S>(totals.ratios == nullptr ? trust_ratio(squares[0], squares[1]) : totals.ratios[g]);
    }
    for (int64_t first = 0; first < table_.width; first += kChanged) {
      const int64_t n = std::min(kChanged, table_.width - first);
      with_values(row, first, n,
                  [&](S* values) { step<true>(values, row * table_.width + first, n, grad + first, scale); });
    }
  }

  /// See lamb_squares().
  void lamb_squares(int64_t g, int64_t row, const S* grad, const RowTotals& totals, double* results) const {
    const S factor = is_row_wise(rates_.method) ? factor_of(rates_, sum_after(g, row, grad, totals)) : S{1};
    find_lamb_squares(row, grad, factor, results);
  }

 private:
  T* row_at(int64_t row) const { return static_cast<T*>(table_.data) + row * table_.step; }

  S sum_after(int64_t g, int64_t row, const S* grad, const RowTotals& totals) const {
    const S mean = totals.mean_squares != nullptr ? static_cast<S>(totals.mean_squares[g])
                   : table_.width == 0            ? S{0}
                                                  : square_sum(grad, table_.width) / static_cast<S>(table_.width);
    return row_sum_after(rates_, row_sums_[rows_are_groups_ ? g : row], mean);
  }

  void find_lamb_squares(int64_t row, const S* grad, S factor, double* results) const {
    results[0] = results[1] = 0;
    S values[kChanged], steps[kChanged];
    for (int64_t first = 0; first < table_.width; first += kChanged) {
      const int64_t n = std::min(kChanged, table_.width - first), at = row * table_.width + first;
      const T* elements = row_at(row) + first;
      for (int64_t c = 0; c < n; ++c) {
        values[c] = load(elements[c]);
        S moment = first_[at + c], second = second_ == nullptr ? S{0} : second_[at + c];
        const S adams = second_ == nullptr ? row_wise_adam_step(rates_, grad[first + c], moment, factor)
                                           : adam_step(rates_, grad[first + c], moment, second);
        steps[c] = lamb_step(rates_, values[c], adams);
      }
      results[0] += static_cast<double>(square_sum(values, n));
      results[1] += static_cast<double>(square_sum(steps, n));
    }
  }

  /// Takes the step of n elements. Their state begins at `at`. `kOfRows`: the method is row-wise or LAMB. The other methods are apart, because
  /// change() is compiled for each length of a column block.
  template <bool kOfRows, class N>
  void step(S* row, int64_t at, N n, const S* grad, const RowScale<S>& of_row) const {
    const Rates<S> rates = rates_;
    const RowScale<S> scale = of_row;
    S* first = first_ == nullptr ? nullptr : first_ + at;
    S* second = second_ == nullptr ? nullptr : second_ + at;
    const auto each = [&](const auto& after) {
      for (int64_t c = 0; c < n; ++c) row[c] = after(c);
    };
    if constexpr (!kOfRows) {
      if (rates.method == UpdateMethod::kSgd) return each([&](int64_t c) { return stepped(rates, row[c], grad[c]); });
      if (rates.method == UpdateMethod::kAdagrad)
        return each([&](int64_t c) { return stepped(rates, row[c], adagrad_step(rates, grad[c], first[c])); });
      return each([&](int64_t c) { return stepped(rates, row[c], adam_step(rates, grad[c], first[c], second[c])); });
    }
    switch (rates.method) {
      case UpdateMethod::kRowWiseAdagrad:
        return each([&](int64_t c) { return stepped(rates, row[c], grad[c] * scale.factor); });
      case UpdateMethod::kRowWiseAdam:
        return each([&](int64_t c) {
          return stepped(rates, row[c], row_wise_adam_step(rates, grad[c], first[c], scale.factor));
        });
      case UpdateMethod::kLamb:
        return each([&](int64_t c) {
          const S adams = adam_step(rates, grad[c], first[c], second[c]);
          return lamb_stepped(rates, row[c], lamb_step(rates, row[c], adams), scale.ratio);
        });
      default:
        return each([&](int64_t c) {
          const S adams = row_wise_adam_step(rates, grad[c], first[c], scale.factor);
          return lamb_stepped(rates, row[c], lamb_step(rates, row[c], adams), scale.ratio);
        });
    }
  }

  /// Calls `change` with n elements in the type of sums, and stores the results.
  template <class N, class Change>
  void with_values(int64_t row, int64_t first, N n, const Change& change) const {
    T* elements = row_at(row) + first;
    if constexpr (std::is_same_v<T, S>) {
      change(elements);
    } else {
      S values[kChanged];
      for (int64_t c = 0; c < n; ++c) values[c] = load(elements[c]);
      change(values);
      if (rounding_.is_on) return store_at_random(values, row, first, n);
      for (int64_t c = 0; c < n; ++c) elements[c] = static_cast<T>(values[c]);
    }
  }

  void store_at_random(const float* values, int64_t row, int64_t first, int64_t n) const {
    T* elements = row_at(row) + first;
    RandomBits bits;
    for (int64_t c = 0; c < n; ++c) {
      const int64_t column = rounding_.first_column + first + c;
      if (c == 0 || column % RandomBits::kColumns == 0)
        bits = random_bits(rounding_, rounding_.first_row + row, column);
      elements[c] = round_to<T>(values[c], bits.of(column));
    }
  }

  Rows table_;
  Rates<S> rates_;
  StochasticRounding rounding_;
  bool rows_are_groups_;
  S* first_;   // per element; null: none
  S* second_;  // per element; null: none
  S* row_sums_ = nullptr;
};

/// Calls `use(g, sums)` for each group in [begin, end). `use` may change the sums, which cover all columns.
template <class T, class Use>
void for_each_row_sum(const GradRows& grads, const Groups& groups, int64_t begin, int64_t end, const Use& use) {
  constexpr int64_t kShort = 256;
  alignas(64) Sum<T> few[kShort];
  std::vector<Sum<T>> many(static_cast<size_t>(grads.width > kShort ? grads.width : 0));
  Sum<T>* row = many.empty() ? few : many.data();
  for (int64_t g = begin; g < end; ++g) {
    for_each_block_of_group<T>(grads, groups, g, end, [&](int64_t first, const auto& block) {
      block.give([&](auto n, const Sum<T>* sum) { std::copy_n(sum, static_cast<int64_t>(n), row + first); });
    });
    use(g, row);
  }
}

/// Updates the rows of the groups [begin, end). Pre: all of them are in the piece.
template <class T>
void update_piece(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  const RowTotals& totals, int64_t begin, int64_t end) {
  const Updater<T> updater(piece);
  const int64_t first_row = piece.table.first_row;
  const int64_t ahead = rows_ahead(grads.width * int64_t{sizeof(T)});
  const auto prefetch_later = [&](int64_t g) {
    if (g + ahead < end) updater.prefetch_row(rows[g + ahead] - first_row);
  };
  if (is_row_wise(piece.update.method) || is_lamb(piece.update.method)) {
    for_each_row_sum<T>(grads, groups, begin, end, [&](int64_t g, Sum<T>* sum) {
      prefetch_later(g);
      updater.add_l2(rows[g] - first_row, sum);
      updater.change_whole(g, rows[g] - first_row, sum, totals);
    });
    return;
  }
  for (int64_t g = begin; g < end; ++g) {
    prefetch_later(g);
    for_each_block_of_group<T>(grads, groups, g, end, [&](int64_t first, const auto& block) {
      block.give([&](auto n, const Sum<T>* sum) { updater.change(rows[g] - first_row, first, n, sum); });
    });
  }
}

}  // namespace

SHARDWISE_KERNEL void grad_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups,
                                   const int64_t* rows, double* results, int64_t begin, int64_t end) {
  with_element(grads.element, [&]<class T>(T) {
    const Updater<T> updater(piece);
    for_each_row_sum<T>(grads, groups, begin, end, [&](int64_t g, Sum<T>* sum) {
      updater.add_l2(rows[g] - piece.table.first_row, sum);
      results[g] = static_cast<double>(square_sum(sum, grads.width));
    });
  });
}

SHARDWISE_KERNEL void lamb_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups,
                                   const int64_t* rows, const RowTotals& totals, double* results, int64_t begin,
                                   int64_t end) {
  with_element(grads.element, [&]<class T>(T) {
    const Updater<T> updater(piece);
    for_each_row_sum<T>(grads, groups, begin, end, [&](int64_t g, Sum<T>* sum) {
      updater.add_l2(rows[g] - piece.table.first_row, sum);
      updater.lamb_squares(g, rows[g] - piece.table.first_row, sum, totals, results + 2 * g);
    });
  });
}

SHARDWISE_KERNEL void update_rows(const UpdatedPieces& pieces, const GradRows& grads, const Groups& groups,
                                  const int64_t* rows, const RowTotals& totals, int64_t begin, int64_t end) {
  const auto first_from = [&](int64_t row) { return std::lower_bound(rows + begin, rows + end, row) - rows; };
  with_element(grads.element, [&]<class T>(T) {
    for (int64_t p = 0; p < pieces.n; ++p) {
      const Rows& table = pieces.here[p].table;
      update_piece<T>(pieces.here[p], grads, groups, rows, totals, first_from(table.first_row),
                      first_from(table.first_row + table.n_rows));
    }
  });
}

}  // namespace shardwise::kernels
