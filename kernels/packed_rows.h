// kernels/packed_rows.h: rows of 8-bit numbers with a scale and an offset each, for tables that are only read.
//
// A packed row: one byte per column, padded to a multiple of 4; then scale and offset, float32. Column c is scale * byte[c] + offset.
// offset is the least number of the row, scale its range / 255, and a byte is the nearest of 0 to 255 (halfway: the even one): the error
// is at most scale / 2, besides float32's.
#pragma once

#include "kernels/bag_pool.h"
#include "kernels/row_lookup.h"

namespace shardwise::kernels {

/// A piece of a table whose rows are packed; otherwise as Rows.
struct PackedRows {
  const void* data;
  int64_t first_row;
  int64_t n_rows;
  int64_t width;  // columns
};

/// 32-bit words of a packed row.
SHARDWISE_ANYWHERE constexpr int64_t packed_words(int64_t width) { return (width + 3) / 4 + 2; }

/// Packs rows [begin, end) of `table`. `ranges`: [n_rows, 2], the least and the largest number of each row, finite; of a row that lies in
/// several pieces those of the whole row, so that it is packed as the whole.
void pack_rows(const Rows& table, const float* ranges, void* packed, int64_t begin, int64_t end);

/// look_up() and pool() of packed rows. `results` and weights are of type `element`, sums float32 (double of doubles).
void look_up_packed(const PackedRows& table, const Ids& ids, Miss miss, Element element, void* results,
                    int64_t result_step, int64_t begin, int64_t end);
void pool_packed(const PackedRows& table, const Ids& ids, const Bags& bags, Pooling pooling, double none,
                 Element element, void* results, int64_t* chosen, int64_t begin, int64_t end);

}  // namespace shardwise::kernels
