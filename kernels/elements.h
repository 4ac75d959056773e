// kernels/elements.h: elements, ids and prefetching. Only for sources of this folder.
#pragma once

#include "kernels/rows.h"
#include "runtime/numbers/elements.h"

#include <cstring>
#include <type_traits>

namespace shardwise::kernels {

/// The type of sums of T.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Sum<T> load(const T& element) {
  return static_cast<Sum<T>>(element);
}

inline constexpr size_t kAvx2 = 32, kAvx512 = 64;  // bytes of a register

/// The number of sums of adjacent columns in one register.
template <class T, size_t kBytes = kAvx2>
inline constexpr size_t kLanes = kBytes / sizeof(Sum<T>);
template <class T, size_t kBytes = kAvx2>
struct LanesOf {
  using Type [[gnu::vector_size(kBytes)]] = Sum<T>;
};
template <class T, size_t kBytes = kAvx2>
using Lanes = typename LanesOf<T, kBytes>::Type;

/// Loads as many elements from `row` on as there are lanes. By reference, because baseline code cannot pass AVX2 registers by value.
template <class T, class AllLanes>
void load_lanes(const T* row, AllLanes& lanes) {
  if constexpr (std::is_same_v<T, Sum<T>>)
    std::memcpy(&lanes, row, sizeof lanes);
  else
    for (size_t i = 0; i < kLanes<T, sizeof lanes>; ++i) lanes[i] = load(row[i]);
}
template <class T, class AllLanes>
void store_lanes(const AllLanes& lanes, T* row) {
  if constexpr (std::is_same_v<T, Sum<T>>)
    std::memcpy(row, &lanes, sizeof lanes);
  else
    for (size_t i = 0; i < kLanes<T, sizeof lanes>; ++i) row[i] = static_cast<T>(lanes[i]);
}
/// Adds elements from `row` on to the lanes of `sums`, multiplied by `factor` if given.
template <class T, class AllLanes>
void add_lanes(const T* row, AllLanes& sums) {
  AllLanes lanes;
  load_lanes(row, lanes);
  sums += lanes;
}
template <class T, class AllLanes>
void add_lanes(const T* row, Sum<T> factor, AllLanes& sums) {
  AllLanes lanes;
  load_lanes(row, lanes);
  sums += factor * lanes;
}

/// Calls `body` with a value of the C++ type of `element`.
template <class Body>
void with_element(Element element, const Body& body) {
  switch (element) {
    case Element::kFloat:
      return body(float{});
    case Element::kDouble:
      return body(double{});
    case Element::kBFloat16:
      return body(BFloat16{});
    case Element::kHalf:
      return body(Half{});
  }
}

/// Calls `body` with the ids as an array of their type.
template <class Body>
void with_ids(const Ids& ids, const Body& body) {
  if (ids.are_int32)
    body(static_cast<const int32_t*>(ids.data));
  else
    body(static_cast<const int64_t*>(ids.data));
}

/// The index in the piece of the row that `id` names. An id before the first row wraps around to a huge number.
inline uint64_t offset_of(int64_t id, int64_t first_row) {
  return static_cast<uint64_t>(id) - static_cast<uint64_t>(first_row);
}

/// Prefetches the first 2 KB of a row.
template <bool kToWrite = false>
void prefetch(const void* row, int64_t n_bytes) {
  const auto* bytes = static_cast<const char*>(row);
  // One address for all lines; else the compiler keeps a base for each in memory. Volatile: else GCC takes callers that only prefetch for functions
  // without effect, and drops the calls.
  asm volatile("" : "+r"(bytes));
  for (int64_t line = 0; line < n_bytes && line < 512; line += 64) __builtin_prefetch(bytes + line, kToWrite);
  if (n_bytes > 512) [[unlikely]]
    for (int64_t line = 512; line < n_bytes && line < 2048; line += 64) __builtin_prefetch(bytes + line, kToWrite);
}
inline constexpr int64_t kAhead = 16;  // rows between a narrow row's prefetch and its use
/// Rows between a row's prefetch and its use, if rows may be wide: about 8 KB.
inline int64_t rows_ahead(int64_t n_bytes) {
  return n_bytes <= 512 ? kAhead : n_bytes <= 1024 ? kAhead / 2 : kAhead / 4;
}

}  // namespace shardwise::kernels
