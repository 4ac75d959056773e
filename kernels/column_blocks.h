// kernels/column_blocks.h: sums of rows in registers, one block of columns at a time. Only for sources of this folder.
#pragma once

#include "kernels/elements.h"

#include <cstring>
#include <type_traits>
#include <utility>

namespace shardwise::kernels {

/// Sums of adjacent columns in kN registers. The number is a compile-time constant, so the sums stay in registers.
template <class T, size_t kN, size_t kBytes>
class ColumnBlock {
 public:
  static constexpr std::integral_constant<int64_t, kN * kLanes<T, kBytes>> n{};

  /// `columns`: the block's first column in a row.
  void add(const T* columns) {
    each([&](size_t i) { add_lanes(columns + i * kLanes<T, kBytes>, sums_[i]); });
  }
  void add(const T* columns, Sum<T> factor) {
    each([&](size_t i) { add_lanes(columns + i * kLanes<T, kBytes>, factor, sums_[i]); });
  }
  /// The same, and prefetches the block's columns of another row. Each line is prefetched behind a sum, because loads wait for prefetches before them.
  void add_and_prefetch(const T* columns, const char* ahead) {
    constexpr size_t kStep = kLanes<T, kBytes> * sizeof(T);
    asm("" : "+r"(ahead));  // one address for all lines, as in prefetch()
    each([&](size_t i) {
      add_lanes(columns + i * kLanes<T, kBytes>, sums_[i]);
      if (i * kStep % 64 == 0) __builtin_prefetch(ahead + i * kStep);
    });
  }
  void divide(Sum<T> divisor) {
    each([&](size_t i) { sums_[i] /= divisor; });
  }
  void store(T* columns) const {
    each([&](size_t i) { store_lanes(sums_[i], columns + i * kLanes<T, kBytes>); });
  }
  /// Calls `use(n, sums)`.
  template <class Use>
  void give(const Use& use) const {
    alignas(64) Sum<T> numbers[n];
    std::memcpy(numbers, sums_, sizeof sums_);
    use(n, numbers);
  }

 private:
  template <class Use>
  static void each(const Use& use) {
    [&]<size_t... i>(std::index_sequence<i...>) { (use(i), ...); }(std::make_index_sequence<kN>());
  }
  Lanes<T, kBytes> sums_[kN] = {};
};

/// The same for at most kMost columns, whose number is only known at run time.
template <class T, size_t kMost = 8>
class LooseColumnBlock {
 public:
  explicit LooseColumnBlock(int64_t n_columns) : n(n_columns) {}
  const int64_t n;

  void add(const T* columns) { add(columns, 1); }
  void add(const T* columns, Sum<T> factor) {
    for (int64_t c = 0; c < n; ++c) sums_[c] += factor * load(columns[c]);
  }
  void add_and_prefetch(const T* columns, const char* ahead) {
    add(columns);
    __builtin_prefetch(ahead);
  }
  /// Adds only the columns whose `chosen` is `id`.
  void add_chosen(const T* columns, Sum<T> factor, const int64_t* chosen, int64_t id) {
    for (int64_t c = 0; c < n; ++c) sums_[c] += chosen[c] == id ? factor * load(columns[c]) : Sum<T>{0};
  }
  void divide(Sum<T> divisor) {
    for (int64_t c = 0; c < n; ++c) sums_[c] /= divisor;
  }
  void store(T* columns) const {
    for (int64_t c = 0; c < n; ++c) columns[c] = static_cast<T>(sums_[c]);
  }
  template <class Use>
  void give(const Use& use) const {
    use(n, sums_);
  }

 private:
  Sum<T> sums_[kMost] = {};
};

/// Covers the columns [0, width) block by block: calls `use(first, block)` with a block of zeros for the columns [first, first + block.n).
/// `kBytes`: of the widest registers to use.
template <class T, size_t kBytes = kAvx2, class Use>
void for_each_column_block(int64_t width, const Use& use) {
  int64_t first = 0;
  const auto cover = [&]<size_t kN, size_t kWide = kAvx2>(std::integral_constant<size_t, kN>,
                                                          std::integral_constant<size_t, kWide> = {}) {
    for (; first + ColumnBlock<T, kN, kWide>::n <= width; first += ColumnBlock<T, kN, kWide>::n) {
      ColumnBlock<T, kN, kWide> block;
      use(first, block);
    }
  };
  if constexpr (kBytes > kAvx2) {
    if constexpr (std::is_same_v<T, Sum<T>>)
      cover(std::integral_constant<size_t, 16>{}, std::integral_constant<size_t, kBytes>{});  // half of its registers
    cover(std::integral_constant<size_t, 8>{}, std::integral_constant<size_t, kBytes>{});
    cover(std::integral_constant<size_t, 4>{}, std::integral_constant<size_t, kBytes>{});
  }
  cover(std::integral_constant<size_t, 8>{});  // half of AVX2's registers
  cover(std::integral_constant<size_t, 4>{});
  cover(std::integral_constant<size_t, 2>{});
  cover(std::integral_constant<size_t, 1>{});
  if (first == width) return;
  LooseColumnBlock<T> block(width - first);
  use(first, block);
}

}  // namespace shardwise::kernels
