// pictures/rank_table.h: the pieces of each rank as lines of a table, and the imbalance of bytes.
//
//   rank  shape    offsets  bytes   share
//      0  [1, 16]  [0, 0]      64   12.5%
//      1  [3, 16]  [1, 0]     192   37.5%
//   imbalance 1.50: rank 1 holds 192 bytes, the mean is 128
#pragma once

#include "pictures/picture.h"

#include <string>
#include <utility>
#include <vector>

namespace shardwise::detail {

/// A line per piece in the order of the grid, and a sum for ranks with several pieces. If there are many ranks (or pieces of a rank), one line
/// replaces the middle ones. Shares are relative to the bytes of the whole tensor: replicas hold 100% each, and shards of an unknown tensor have no
/// share.
TableFigure rank_table(const TensorFigure& figure);

using RankBytes = std::pair<int64_t, int64_t>;  // a rank, and its bytes

/// "37.5%". Small shares have two significant digits, "0.012%", and so does the difference to 100%, "99.988%", so that little differs from nothing
/// and almost all from all.
std::string share_of(int64_t n_bytes, int64_t total);

/// "imbalance 1.50: rank 1 holds 192 bytes, the mean is 128". Pre: at least one rank.
std::string imbalance_of(const std::vector<RankBytes>& held);

/// A line per rank with its bytes and their share of `total`; if there are many ranks, the middle ones are left out. The imbalance is a note.
TableFigure bytes_table(const std::vector<RankBytes>& held, int64_t total);

}  // namespace shardwise::detail
