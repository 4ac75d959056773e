// kernels/pieces.h: several pieces, of one table or of several tables, that one call works on as on one table.
//
//   tables of 10 and 5 rows, first_row 0 and 10:  id 12 is row 2 of the second
#pragma once

#include "kernels/bag_pool.h"
#include "kernels/row_lookup.h"
#include "kernels/row_updates.h"

namespace shardwise::kernels {

/// Pieces of one element and width, which ascend by `first_row` and do not overlap. Ids of rows that none has are skipped.
struct Pieces {
  const Rows* at;
  int64_t n;
};

SHARDWISE_ANYWHERE inline const Rows& rows_of(const Rows& piece) { return piece; }
SHARDWISE_ANYWHERE inline const Rows& rows_of(const UpdatedPiece& piece) { return piece.table; }

SHARDWISE_ANYWHERE inline bool has_row(const Rows& piece, int64_t id) {
  return static_cast<uint64_t>(id) - static_cast<uint64_t>(piece.first_row) < static_cast<uint64_t>(piece.n_rows);
}

/// The index of the piece that has row `id`; -1: none. Cost: O(log n).
template <class Piece>
SHARDWISE_ANYWHERE int64_t piece_with(const Piece* pieces, int64_t n, int64_t id) {
  int64_t low = 0, high = n;  // the last piece that begins at `id` or before is in [low - 1, high)
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (rows_of(pieces[middle]).first_row <= id)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 0 && has_row(rows_of(pieces[low - 1]), id) ? low - 1 : -1;
}

/// look_up() and pool() of row_lookup.h and bag_pool.h in all pieces. Pre: at least one piece.
void look_up(const Pieces& pieces, const Ids& ids, Miss miss, void* results, int64_t result_step, int64_t begin,
             int64_t end);
void pool(const Pieces& pieces, const Ids& ids, const Bags& bags, Pooling pooling, double none, void* results,
          int64_t* chosen, int64_t begin, int64_t end);

}  // namespace shardwise::kernels
