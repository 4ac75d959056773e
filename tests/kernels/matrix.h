// tests/kernels/matrix.h: tables, ids and groups for tests of the kernels.
#pragma once

#include "kernels/elements.h"
#include "kernels/id_groups.h"

#include <random>
#include <utility>
#include <vector>

namespace shardwise::kernels {

inline constexpr Element kElements[] = {Element::kFloat, Element::kDouble, Element::kBFloat16, Element::kHalf};
inline constexpr int64_t kWidths[] = {1, 7, 64, 300};

/// A matrix of some element whose numbers are few enough bits to be exact in all of them.
struct Matrix {
  Element element;
  int64_t n_rows, width, step;
  std::vector<char> memory;

  Matrix(Element e, int64_t rows, int64_t columns, int64_t padding = 0)
      : element(e), n_rows(rows), width(columns), step(columns + padding), memory(rows * step * size_of(e)) {}

  double get(int64_t row, int64_t column) const {
    double value = 0;
    with_element(element, [&]<class T>(T) {
      value = static_cast<double>(load(reinterpret_cast<const T*>(memory.data())[row * step + column]));
    });
    return value;
  }
  void set(int64_t row, int64_t column, double value) {
    with_element(element, [&]<class T>(T) {
      reinterpret_cast<T*>(memory.data())[row * step + column] = static_cast<T>(static_cast<Sum<T>>(value));
    });
  }
  Matrix& fill(int64_t seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (int64_t r = 0; r < n_rows; ++r)
      for (int64_t c = 0; c < width; ++c) set(r, c, static_cast<double>(random() % 17) / 4 - 2);
    return *this;
  }
  Rows rows(int64_t first_row = 0) { return {memory.data(), element, first_row, n_rows, width, step}; }
  GradRows grads() { return {memory.data(), element, width, step, nullptr, nullptr, nullptr}; }
};

/// Ids in 32 or 64 bits.
struct IdList {
  std::vector<int64_t> wide;
  std::vector<int32_t> narrow;
  bool are_int32;

  IdList(std::vector<int64_t> ids, bool as_int32)
      : wide(std::move(ids)), narrow(wide.begin(), wide.end()), are_int32(as_int32) {}
  Ids ids() const {
    return {are_int32 ? static_cast<const void*>(narrow.data()) : wide.data(), are_int32,
            static_cast<int64_t>(wide.size())};
  }
};

inline std::vector<int64_t> random_ids(int64_t n, int64_t below, int64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<int64_t> ids(n);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % below);
  return ids;
}

struct Grouped {
  std::vector<int64_t> rows, starts, order, group_of;
  int64_t n;

  Groups all() const { return {order.data(), starts.data(), n, static_cast<int64_t>(order.size())}; }
};

inline Grouped grouped(const Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped = -1) {
  Grouped groups;
  std::vector<uint64_t> scratch(2 * ids.n);
  groups.rows.resize(ids.n), groups.starts.resize(ids.n + 1), groups.order.resize(ids.n), groups.group_of.resize(ids.n);
  groups.n = group_ids(
      ids, first_row, n_rows, skipped,
      {groups.rows.data(), groups.starts.data(), groups.order.data(), groups.group_of.data(), scratch.data()});
  groups.rows.resize(groups.n);
  groups.starts.resize(groups.n + 1);
  return groups;
}

}  // namespace shardwise::kernels
