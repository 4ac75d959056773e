// kernels/rows.h: rows of a table, ids and gradients as raw memory, for the kernels of this folder.
//
// Kernels know neither torch nor ranks. CPU kernels do the part [begin, end) of the work, so that callers can divide it among threads.
// Kernels of the same names in kernels/cuda/ take a stream and do all of the work. All offsets have 64 bits, so rows times width may exceed
// 2^31. Ids outside a piece's rows are not errors: they belong to other ranks' pieces.
#pragma once

#include <cstdint>

// Marks a function that both CPU and device kernels call.
#ifdef __CUDACC__
#define SHARDWISE_ANYWHERE __host__ __device__
#else
#define SHARDWISE_ANYWHERE
#endif

namespace shardwise::kernels {

/// The element type of tables, gradients and results. Sums are float32 (float64 for doubles).
enum class Element : uint8_t { kFloat, kDouble, kBFloat16, kHalf };

/// The number of bytes of an element.
SHARDWISE_ANYWHERE constexpr int64_t size_of(Element element) {
  return element == Element::kDouble ? 8 : element == Element::kFloat ? 4 : 2;
}

/// A piece of a table. Element (row, column) of the piece is at `data + row * step + column`; the piece's row 0 is row `first_row` of the
/// table.
struct Rows {
  void* data;
  Element element;
  int64_t first_row;
  int64_t n_rows;
  int64_t width;
  int64_t step;  // elements
};

/// Row numbers in the table.
struct Ids {
  const void* data;
  bool are_int32;  // else int64
  int64_t n;
};

/// Bags of ids: bag b holds the ids [offsets[b], offsets[b + 1]), the last one up to `n_ids`.
struct Bags {
  const int64_t* offsets;
  int64_t n;
  int64_t n_ids;
  int64_t padding;      // an id that does not count; negative: none
  const void* weights;  // a factor per id, the table's element; null: 1
};

enum class Pooling : uint8_t { kSum, kMean, kMax };

/// Gradient rows: one per id or, for pooled lookups, one per bag. The gradient of id k is `factors[k] * data[row_of[k]]`, only in the
/// columns where `chosen` is k.
struct GradRows {
  const void* data;
  Element element;
  int64_t width;
  int64_t step;           // elements between rows; 0: the same row for all
  const int64_t* row_of;  // null: row k for id k
  const void* factors;    // float (double for double gradients); null: 1
  const int64_t* chosen;  // [gradient rows, width], for maxima: the id of the maximum; null: all ids
};

}  // namespace shardwise::kernels
