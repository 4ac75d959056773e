// kernels/rows.h: rows of a table, ids and gradients as raw memory: what the kernels of this room work on.
//
// Kernels know neither torch nor ranks. Those for the CPU do the part [begin, end) of the work, so that callers can divide it among
// threads; kernels of the same names in kernels/cuda/ take a stream and do all of it. Offsets have 64 bits everywhere, so rows times
// width may exceed 2^31. Ids outside a piece's rows are not errors: they belong to other ranks' pieces.
#pragma once

#include <cstdint>

// A function that both the CPU's and the device's kernels call.
#ifdef __CUDACC__
#define SHARDWISE_ANYWHERE __host__ __device__
#else
#define SHARDWISE_ANYWHERE
#endif

namespace shardwise::kernels {

/// Elements of tables, gradients and results. Sums are float32 (float64 for doubles).
enum class Element : uint8_t { kFloat, kDouble, kBFloat16, kHalf };

/// The bytes of one.
SHARDWISE_ANYWHERE constexpr int64_t size_of(Element element) {
  return element == Element::kDouble ? 8 : element == Element::kFloat ? 4 : 2;
}

/// A piece of a table: element (row, column) of the piece at `data + row * step + column`; its row 0 is row `first_row` of the table.
struct Rows {
  void* data;
  Element element;
  int64_t first_row;
  int64_t n_rows;
  int64_t width;
  int64_t step;  // elements
};

/// Numbers of rows of the table.
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

/// Gradient rows: one per id or, of pooled lookups, one per bag. The gradient of id k is `factors[k] * data[row_of[k]]`, in the columns
/// where `chosen` is k.
struct GradRows {
  const void* data;
  Element element;
  int64_t width;
  int64_t step;           // elements between rows; 0: one row for all
  const int64_t* row_of;  // null: row k to id k
  const void* factors;    // float (double for double gradients); null: 1
  const int64_t* chosen;  // [gradient rows, width], of maxima: the id that had the maximum; null: all ids
};

}  // namespace shardwise::kernels
