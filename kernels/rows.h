// kernels/rows.h: rows of a table, ids and gradients as raw memory: what the kernels of this room work on.
//
// Kernels know neither torch nor ranks. Those for the CPU do the part [begin, end) of the work, so that callers may share it
// out over threads; their namesakes in kernels/cuda/ take a stream and do all of it. Offsets are 64 bits wide everywhere, so rows times
// width may pass 2^31. Ids outside of a piece's rows are no fault: they belong to other ranks' pieces.
#pragma once

#include <cstdint>

// A function that both the CPU's and the device's kernels call.
#ifdef __CUDACC__
#define SHARDWISE_ANYWHERE __host__ __device__
#else
#define SHARDWISE_ANYWHERE
#endif

namespace shardwise::kernels {

/// Elements of tables, gradients and results. Sums are float32, of doubles float64.
enum class Element : uint8_t { kFloat, kDouble, kBFloat16, kHalf };

/// The bytes of one.
constexpr int64_t size_of(Element element) {
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

/// Rows wanted, by their number in the table.
struct Ids {
  const void* data;
  bool are_int32;  // else int64
  int64_t n;
};

/// Bags of ids: bag b holds ids [offsets[b], offsets[b + 1]), the last one those up to `n_ids`.
struct Bags {
  const int64_t* offsets;
  int64_t n;
  int64_t n_ids;
  int64_t padding;      // an id that does not count; negative: none
  const void* weights;  // a factor per id, of the table's element; null: 1
};

enum class Pooling : uint8_t { kSum, kMean, kMax };

/// One gradient row per id or, of pooled lookups, per bag: the gradient of id k is
/// `factors[k] * data[row_of[k]]`, in the columns where `chosen` names k.
struct GradRows {
  const void* data;
  Element element;
  int64_t width;
  int64_t step;           // elements between rows; 0 where all are one
  const int64_t* row_of;  // null: k itself
  const void* factors;    // float, of double gradients double; null: 1
  const int64_t* chosen;  // [gradient rows, width], of maxima: the id whose value it was; null: all
};

}  // namespace shardwise::kernels
