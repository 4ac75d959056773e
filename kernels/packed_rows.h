// kernels/packed_rows.h: rows of 8-bit numbers with a scale and an offset each, for read-only tables.
//
// A packed row has one byte per column, padded to a multiple of 4, then the scale and the offset as float32. Column c is scale * byte[c] +
// offset. The offset is the smallest number of the row and the scale is its range / 255. A byte is rounded to the nearest of 0 to 255 (ties
// to even), so the error is at most scale / 2, plus that of float32.
#pragma once

#include "kernels/bag_pool.h"

namespace shardwise::kernels {

/// A piece of a table with packed rows; members as in Rows.
struct PackedRows {
  const void* data;
  int64_t first_row;
  int64_t n_rows;
  int64_t width;  // columns
};

/// The number of 32-bit words in a packed row.
SHARDWISE_ANYWHERE constexpr int64_t packed_words(int64_t width) { return (width + 3) / 4 + 2; }

/// look_up() and pool() for packed rows. `results` and weights are of type `element`; sums are float32 (double for doubles). A lookup keeps
/// the results of ids in other pieces.
void look_up_packed(const PackedRows& table, const Ids& ids, Element element, void* results, int64_t result_step,
                    int64_t begin, int64_t end);
void pool_packed(const PackedRows& table, const Ids& ids, const Bags& bags, Pooling pooling, Element element,
                 void* results, int64_t* chosen, int64_t begin, int64_t end);

}  // namespace shardwise::kernels
