// Updates of rows against the formulas written out, rounding at random, and several pieces in one call against one call each.
#include "kernels/row_updates.h"
#include "tests/kernels/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace shardwise::kernels {
namespace {

using Method = UpdateMethod;
constexpr Method kMethods[] = {Method::kSgd,         Method::kAdagrad, Method::kRowWiseAdagrad, Method::kAdam,
                               Method::kRowWiseAdam, Method::kLamb,    Method::kRowWiseLamb};

/// A table with its state in float64, and its update.
struct Optimized {
  Matrix table, first, second;
  RowUpdate update;

  Optimized(int64_t n_rows, int64_t width, const RowUpdate& of, int64_t seed)
      : table(Matrix(Element::kDouble, n_rows, width).fill(seed)),
        first(Element::kDouble, n_rows, width),
        second(Element::kDouble, n_rows, width),
        update(of) {
    for (int64_t r = 0; r < n_rows; ++r)
      for (int64_t c = 0; c < width; ++c) {
        first.set(r, c, 0.1 * static_cast<double>((r + c) % 5));
        second.set(r, c, 0.2 * static_cast<double>((2 * r + c) % 7));
      }
  }
  UpdatedPiece piece(int64_t first_row = 0) {
    return {table.rows(first_row), {first.memory.data(), second.memory.data()}, update};
  }

  /// The formulas, for one row. Numbers per row lie in the state's first n_rows elements.
  void step(int64_t row, std::vector<double> grad) {
    const int64_t width = table.width;
    const RowUpdate& u = update;
    const auto number = [&](Matrix& state) -> double& { return reinterpret_cast<double*>(state.memory.data())[row]; };
    const auto element = [&](Matrix& state, int64_t c) -> double& {
      return reinterpret_cast<double*>(state.memory.data())[row * width + c];
    };
    double mean = 0;
    for (int64_t c = 0; c < width; ++c) {
      grad[c] += u.l2 * table.get(row, c);
      mean += grad[c] * grad[c] / static_cast<double>(width);
    }
    if (u.method == Method::kRowWiseAdagrad) number(first) += mean;
    if (u.method == Method::kRowWiseAdam || u.method == Method::kRowWiseLamb)
      number(second) = u.beta2 * number(second) + (1 - u.beta2) * mean;
    std::vector<double> step(width);
    double of_row = 0, of_step = 0;
    for (int64_t c = 0; c < width; ++c) {
      if (u.method == Method::kSgd) step[c] = grad[c];
      if (u.method == Method::kRowWiseAdagrad) step[c] = grad[c] / (std::sqrt(number(first)) + u.eps);
      if (u.method == Method::kAdagrad) {
        element(first, c) += grad[c] * grad[c];
        step[c] = grad[c] / (std::sqrt(element(first, c)) + u.eps);
      }
      if (has_moments(u.method)) {
        element(first, c) = u.beta1 * element(first, c) + (1 - u.beta1) * grad[c];
        if (!is_row_wise(u.method))
          element(second, c) = u.beta2 * element(second, c) + (1 - u.beta2) * grad[c] * grad[c];
        const double v = is_row_wise(u.method) ? number(second) : element(second, c);
        step[c] = u.correction * element(first, c) / (std::sqrt(v) + u.eps);
      }
      if (is_lamb(u.method)) step[c] += u.decay * table.get(row, c);
      of_row += table.get(row, c) * table.get(row, c);
      of_step += step[c] * step[c];
    }
    const double ratio = is_lamb(u.method) && of_row > 0 && of_step > 0 ? std::sqrt(of_row) / std::sqrt(of_step) : 1;
    for (int64_t c = 0; c < width; ++c) {
      const double kept = is_lamb(u.method) ? 1 : 1 - u.lr * u.decay;
      table.set(row, c, kept * table.get(row, c) - u.lr * ratio * step[c]);
    }
  }
};

void expect_near(const Matrix& found, const Matrix& expected, const std::string& what) {
  for (int64_t r = 0; r < found.n_rows; ++r)
    for (int64_t c = 0; c < found.width; ++c)
      ASSERT_NEAR(found.get(r, c), expected.get(r, c), 1e-9) << what << " row " << r << " column " << c;
}

struct Batch {
  IdList ids;
  Grouped groups;
  Matrix grads;

  Batch(int64_t n, int64_t n_rows, int64_t width, int64_t seed)
      : ids(random_ids(n, n_rows, seed), false),
        groups(grouped(ids.ids(), 0, n_rows)),
        grads(Matrix(Element::kDouble, n, width).fill(seed + 1)) {}

  void update(const std::vector<UpdatedPiece>& pieces, const RowTotals& totals = {}) {
    for (const auto& [begin, end] : {std::pair{int64_t{0}, groups.n / 3}, std::pair{groups.n / 3, groups.n}})
      update_rows({pieces.data(), static_cast<int64_t>(pieces.size())}, grads.grads(), groups.all(), groups.rows.data(),
                  totals, begin, end);
  }
  std::vector<double> sum(int64_t row) const {
    std::vector<double> total(grads.width);
    for (size_t k = 0; k < ids.wide.size(); ++k)
      for (int64_t c = 0; c < grads.width && ids.wide[k] == row; ++c) total[c] += grads.get(static_cast<int64_t>(k), c);
    return total;
  }
};

TEST(RowUpdatesTest, StepsAreTheFormulas) {
  for (const Method method : kMethods)
    for (const int64_t width : kWidths)
      for (const auto& [l2, decay] : {std::pair{0.0, 0.0}, std::pair{0.3, 0.0}, std::pair{0.0, 0.2}}) {
        const RowUpdate update{method, 0.1, 1e-2, 0.9, 0.99, 0.7, l2, decay};
        Optimized found(9, width, update, 1), expected(9, width, update, 1);
        for (int64_t c = 0; c < width; ++c) found.table.set(3, c, 0), expected.table.set(3, c, 0);
        Batch batch(20, 9, width, 2);
        batch.update({found.piece()});
        for (const int64_t row : batch.groups.rows) expected.step(row, batch.sum(row));
        const std::string what = "kind " + std::to_string(static_cast<int>(method)) + " width " + std::to_string(width);
        expect_near(found.table, expected.table, what);
        expect_near(found.first, expected.first, what + " first");
        expect_near(found.second, expected.second, what + " second");
      }
}

/// The columns [first, first + width) of `matrix`.
Matrix columns_of(const Matrix& matrix, int64_t first, int64_t width) {
  Matrix part(matrix.element, matrix.n_rows, width);
  for (int64_t r = 0; r < matrix.n_rows; ++r)
    for (int64_t c = 0; c < width; ++c) part.set(r, c, matrix.get(r, first + c));
  return part;
}

TEST(RowUpdatesTest, ColumnsApartNeedTotalsOfRows) {
  constexpr int64_t kWidth = 11, kParts[] = {0, 4, 4, kWidth};
  for (const Method method : kMethods) {
    const RowUpdate update{method, 0.1, 1e-2, 0.9, 0.99, 0.7, 0.1, 0.2};
    Optimized whole(9, kWidth, update, 1);
    Batch batch(20, 9, kWidth, 2);
    std::vector<Optimized> parts;
    std::vector<Batch> batches;
    for (int p = 0; p < 3; ++p) {
      const int64_t width = kParts[p + 1] - kParts[p];
      parts.emplace_back(9, width, update, 1).table = columns_of(whole.table, kParts[p], width);
      if (!is_row_wise(method) || has_moments(method)) parts[p].first = columns_of(whole.first, kParts[p], width);
      if (!is_row_wise(method)) parts[p].second = columns_of(whole.second, kParts[p], width);
      batches.emplace_back(20, 9, width, 2).grads = columns_of(batch.grads, kParts[p], width);
      // A number per row, even of rows without columns.
      for (Matrix* state : {&parts[p].first, &parts[p].second}) state->memory.resize(9 * 8 * (width + 1));
    }
    const auto set_numbers = [&](Matrix Optimized::* state) {
      for (int p = 0; p < 3; ++p) std::copy_n((whole.*state).memory.begin(), 9 * 8, (parts[p].*state).memory.begin());
    };
    if (is_row_wise(method)) set_numbers(has_moments(method) ? &Optimized::second : &Optimized::first);
    const int64_t n = batch.groups.n;
    std::vector<double> means(n), ratios(n), pairs(2 * n), row_squares(n), step_squares(n);
    for (int64_t g = 0; g < n; ++g) {
      const std::vector<double> sums = batch.sum(batch.groups.rows[g]);
      for (int64_t c = 0; c < kWidth; ++c)
        means[g] += std::pow(sums[c] + update.l2 * whole.table.get(batch.groups.rows[g], c), 2) / kWidth;
    }
    RowTotals totals{means.data(), nullptr};
    if (is_lamb(method)) {
      for (int p = 0; p < 3; ++p) {
        lamb_squares(parts[p].piece(), batches[p].grads.grads(), batch.groups.all(), batch.groups.rows.data(), totals,
                     pairs.data(), 0, n);
        for (int64_t g = 0; g < n; ++g) row_squares[g] += pairs[2 * g], step_squares[g] += pairs[2 * g + 1];
      }
      for (int64_t g = 0; g < n; ++g) ratios[g] = trust_ratio(row_squares[g], step_squares[g]);
      totals.ratios = ratios.data();
    }
    batch.update({whole.piece()});
    for (int p = 0; p < 3; ++p) {
      batches[p].update({parts[p].piece()}, totals);
      expect_near(parts[p].table, columns_of(whole.table, kParts[p], kParts[p + 1] - kParts[p]),
                  "kind " + std::to_string(static_cast<int>(method)) + " part " + std::to_string(p));
      if (!is_row_wise(method)) continue;
      const Matrix Optimized::* state = has_moments(method) ? &Optimized::second : &Optimized::first;
      for (int64_t row = 0; row < 9; ++row)
        ASSERT_NEAR(reinterpret_cast<const double*>((parts[p].*state).memory.data())[row],
                    reinterpret_cast<const double*>((whole.*state).memory.data())[row], 1e-9);
    }
  }
}

TEST(RowUpdatesTest, NumbersOfRowsMayLieByGroup) {
  const RowUpdate update{Method::kRowWiseAdam, 0.1, 1e-2, 0.9, 0.99, 0.7};
  Optimized by_row(9, 5, update, 1), by_group(9, 5, update, 1);
  Batch batch(6, 9, 5, 2);
  UpdatedPiece piece = by_group.piece();
  std::vector<double> numbers(batch.groups.n);
  for (int64_t g = 0; g < batch.groups.n; ++g)
    numbers[g] = reinterpret_cast<double*>(by_row.second.memory.data())[batch.groups.rows[g]];
  piece.state.second = numbers.data();
  piece.state.rows_are_groups = true;
  batch.update({by_row.piece()});
  batch.update({piece});
  expect_near(by_group.table, by_row.table, "rows");
  for (int64_t g = 0; g < batch.groups.n; ++g)
    EXPECT_EQ(numbers[g], reinterpret_cast<double*>(by_row.second.memory.data())[batch.groups.rows[g]]);
}

TEST(RowUpdatesTest, SeveralPiecesInOneCall) {
  constexpr int64_t kWidth = 7;
  // Virtual rows [0, 5), [5, 9), a gap, [12, 20).
  constexpr int64_t kFirst[] = {0, 5, 12}, kCount[] = {5, 4, 8};
  std::vector<Optimized> together, apart;
  const Method methods[] = {Method::kAdam, Method::kRowWiseAdagrad, Method::kLamb};
  for (int p = 0; p < 3; ++p) {
    const RowUpdate update{methods[p], 0.1 * (p + 1), 1e-2, 0.9, 0.99};
    together.emplace_back(kCount[p], kWidth, update, p + 1);
    apart.emplace_back(kCount[p], kWidth, update, p + 1);
  }
  Batch batch(40, 20, kWidth, 3);
  std::vector<UpdatedPiece> pieces;
  for (int p = 0; p < 3; ++p) pieces.push_back(together[p].piece(kFirst[p]));
  batch.update(pieces);
  for (int p = 0; p < 3; ++p) {
    for (const int64_t row : batch.groups.rows)
      if (row >= kFirst[p] && row < kFirst[p] + kCount[p]) apart[p].step(row - kFirst[p], batch.sum(row));
    expect_near(together[p].table, apart[p].table, "piece " + std::to_string(p));
    expect_near(together[p].first, apart[p].first, "first of piece " + std::to_string(p));
    expect_near(together[p].second, apart[p].second, "second of piece " + std::to_string(p));
  }
}

TEST(StochasticRoundingTest, GivesTheNumbersNextToAValueAndItsMean) {
  const StochasticRounding rounding{true, 3, 1, 0, 0};
  const auto check = [&](float value, float below, float above, float (*round)(float, uint32_t)) {
    constexpr int64_t kTimes = 1 << 16;
    double sum = 0;
    for (int64_t column = 0; column < kTimes; ++column) {
      const float rounded = round(value, random_bits(rounding, 5, column).of(column));
      ASSERT_TRUE(rounded == below || rounded == above) << value << " became " << rounded;
      sum += static_cast<double>(rounded);
    }
    const double gap = std::abs(static_cast<double>(above) - static_cast<double>(below));
    EXPECT_NEAR(sum / kTimes, static_cast<double>(value), 5 * gap / 2 / std::sqrt(kTimes)) << value;
  };
  check(1.001f, 1, 1.0078125f, &rounded_to_bfloat16);
  check(-1.007f, -1, -1.0078125f, &rounded_to_bfloat16);
  check(1.0f, 1, 1, &rounded_to_bfloat16);
  check(1.0003f, 1, 1.0009765625f, &rounded_to_half);
  check(-3.001f, -3, -3.001953125f, &rounded_to_half);
  check(1e-7f, 0x1p-24f, 0x1p-23f, &rounded_to_half);  // subnormal
  check(-1e-8f, 0, -0x1p-24f, &rounded_to_half);
  check(6.1e-5f, 1023 * 0x1p-24f, 0x1p-14f, &rounded_to_half);  // between the last subnormal and the first normal
  check(0, 0, 0, &rounded_to_half);
}

TEST(StochasticRoundingTest, ExactNumbersStay) {
  for (const uint32_t random : {0U, 1U, 0x7fffU, 0x8000U, 0xfffcU, 0xfffdU, 0xfffeU, 0xffffU}) {
    for (int units = 0; units <= 2048; ++units)  // subnormal below 1024
      for (const float value : {static_cast<float>(units) * 0x1p-24f, static_cast<float>(-units) * 0x1p-24f})
        EXPECT_EQ(rounded_to_half(value, random), value) << units << " by " << random;
    for (uint32_t upper = 0; upper < 0x7f80; ++upper)
      EXPECT_EQ(rounded_to_bfloat16(float_of(upper << 16), random), float_of(upper << 16)) << upper << " by " << random;
  }
}

TEST(StochasticRoundingTest, FiniteNumbersStayFinite) {
  const float largest = float_of(0x7f7fffff), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded_to_bfloat16(largest, 0xffff), largest);  // and then as to the nearest
  EXPECT_EQ(rounded_to_bfloat16(infinity, 0xffff), infinity);
  EXPECT_EQ(rounded_to_half(-65519, 0xffff), -65519);
  EXPECT_EQ(rounded_to_half(65503.9f, 0xffff), 65504);
  EXPECT_TRUE(std::isnan(rounded_to_half(std::nanf(""), 1)));
  EXPECT_TRUE(std::isnan(rounded_to_bfloat16(std::nanf(""), 0xffff)));
}

TEST(StochasticRoundingTest, BitsAreThoseOfPhilox) {
  // The known answers for philox4x32 of 10 rounds that its authors publish with Random123: of zeros, and of digits of pi.
  const auto expect_words = [](const RandomBits& bits, const std::vector<uint32_t>& words) {
    EXPECT_EQ(std::vector<uint32_t>(bits.words, bits.words + 4), words);
    EXPECT_EQ(bits.of(1), words[0] >> 16);
    EXPECT_EQ(bits.of(14), words[3] & 0xffff);
  };
  expect_words(random_bits({true, 0, 0, 0, 0}, 0, 7), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_words(random_bits({true, 0x299f31d0a4093822, 0x03707344, 0, 0}, static_cast<int64_t>(0x85a308d3243f6a88),
                           int64_t{0x13198a2e} * 8),
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(StochasticRoundingTest, DependsOnTheElementAndNotOnItsPiece) {
  constexpr int64_t kWidth = 21;
  for (const Element element : {Element::kBFloat16, Element::kHalf}) {
    const auto updated = [&](int64_t first_row, int64_t n_rows, int64_t first_column, int64_t width, uint64_t seed) {
      Matrix table(element, n_rows, width), grads(element, n_rows, width);
      std::vector<int64_t> all(n_rows);
      std::iota(all.begin(), all.end(), int64_t{0});
      for (int64_t r = 0; r < n_rows; ++r)
        for (int64_t c = 0; c < width; ++c)
          grads.set(r, c, static_cast<double>((first_row + r) * 31 + (first_column + c) * 7 % 50) / 64 + 1);
      const IdList ids(all, false);
      const Grouped groups = grouped(ids.ids(), 0, n_rows);
      RowUpdate update{Method::kSgd, 0.001, 0, 0, 0};
      update.rounding = {true, seed, 4, first_row, first_column};
      const UpdatedPiece piece{table.rows(), {nullptr, nullptr}, update};
      update_rows({&piece, 1}, grads.grads(), groups.all(), groups.rows.data(), {}, 0, groups.n);
      return table;
    };
    const Matrix whole = updated(0, 12, 0, kWidth, 9), other = updated(0, 12, 0, kWidth, 10);
    EXPECT_NE(whole.memory, other.memory);
    for (const auto& [first_row, n_rows] : {std::pair{0, 5}, std::pair{5, 7}})
      for (const auto& [first_column, width] : {std::pair{0, 3}, std::pair{3, 18}}) {
        const Matrix part = updated(first_row, n_rows, first_column, width, 9);
        for (int64_t r = 0; r < n_rows; ++r)
          for (int64_t c = 0; c < width; ++c)
            ASSERT_EQ(part.get(r, c), whole.get(first_row + r, first_column + c)) << r << " " << c;
      }
  }
}

}  // namespace
}  // namespace shardwise::kernels
