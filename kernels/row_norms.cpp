#include "kernels/row_norms.h"

#include "kernels/elements.h"

#include <cmath>

namespace shardwise::kernels {
namespace {

template <class T, class Power>
double sum_row(const T* row, int64_t width, const Power& power) {
  double lanes[8] = {};  // independent sums, which do not wait for each other
  int64_t c = 0;
  for (; c + 8 <= width; c += 8)
    for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += power(static_cast<double>(load(row[c + lane])));
  for (; c < width; ++c) lanes[0] += power(static_cast<double>(load(row[c])));
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <class T>
double row_power(const T* row, int64_t width, double p) {
  if (p == 2) return sum_row(row, width, [](double x) { return x * x; });
  if (p == 1) return sum_row(row, width, [](double x) { return std::abs(x); });
  if (std::isinf(p)) {
    double largest = 0;
    for (int64_t c = 0; c < width; ++c) {
      const double x = std::abs(static_cast<double>(load(row[c])));
      largest = x > largest || std::isnan(x) ? x : largest;
    }
    return largest;
  }
  return sum_row(row, width, [p](double x) { return p == 0 ? x != 0 : std::pow(std::abs(x), p); });
}

double norm_of(double power, double p) {
  if (p == 2) return std::sqrt(power);
  if (p == 1 || p == 0 || std::isinf(p)) return power;
  return std::pow(power, 1 / p);
}

template <class T>
T* row_at(const Rows& table, int64_t row) {
  return static_cast<T*>(table.data) + row * table.step;
}

}  // namespace

SHARDWISE_KERNEL void row_powers(const Rows& table, const int64_t* rows, double p, double* results, int64_t begin,
                                 int64_t end) {
  with_element(table.element, [&]<class T>(T) {
    for (int64_t i = begin; i < end; ++i) results[i] = row_power(row_at<T>(table, rows[i]), table.width, p);
  });
}

SHARDWISE_KERNEL void shorten_rows(const Rows& table, const int64_t* rows, double p, double max_norm,
                                   const double* powers, int64_t begin, int64_t end) {
  with_element(table.element, [&]<class T>(T) {
    for (int64_t i = begin; i < end; ++i) {
      const double norm = norm_of(powers[i], p);
      if (!(norm > max_norm)) continue;
      const auto factor = static_cast<Sum<T>>(max_norm / (norm + 1e-7));
      T* row = row_at<T>(table, rows[i]);
      for (int64_t c = 0; c < table.width; ++c) row[c] = static_cast<T>(load(row[c]) * factor);
    }
  });
}

}  // namespace shardwise::kernels
