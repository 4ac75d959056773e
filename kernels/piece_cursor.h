// kernels/piece_cursor.h: rows of several pieces by id. For sources of this room.
#pragma once

#include "kernels/elements.h"
#include "kernels/pieces.h"

namespace shardwise::kernels {

/// Asks the piece that had the id before first: neighbouring ids mostly name rows of one table.
class PieceCursor {
 public:
  explicit PieceCursor(const Pieces& pieces) : pieces_(pieces) {}

  /// The row's first element; null where no piece has it.
  const char* find(int64_t id) {
    if (!has_row(pieces_.at[now_], id)) {
      const int64_t found = piece_with(pieces_.at, pieces_.n, id);
      if (found < 0) return nullptr;
      now_ = found;
    }
    const Rows& piece = pieces_.at[now_];
    return static_cast<const char*>(piece.data) + (id - piece.first_row) * piece.step * size_of(piece.element);
  }

 private:
  const Pieces pieces_;
  int64_t now_ = 0;
};

}  // namespace shardwise::kernels
