// pictures/rank_table.h: the pieces of each rank as lines of a table, and how evenly the bytes lie.
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

/// A line per piece in the order of the grid, a sum for ranks of several pieces. Of many ranks (or pieces of a rank) the
/// middle is left out, and a line says so. Shares are of the whole tensor's bytes, so replicas hold 100% each, and shards of which
/// the tensor is not known have none.
TableFigure rank_table(const TensorFigure& figure);

using RankBytes = std::pair<int64_t, int64_t>;  // a rank, and its bytes

/// "37.5%"; of a small share two digits that count, "0.012%", and of one that lacks little, "99.988%": who holds little does not look like
/// who holds nothing, nor almost all like all.
std::string share_of(int64_t n_bytes, int64_t total);

/// "imbalance 1.50: rank 1 holds 192 bytes, the mean is 128". Pre: at least one rank.
std::string imbalance_of(const std::vector<RankBytes>& held);

/// A line per rank with its bytes and their share of `total`; of many ranks the middle is left out. The imbalance is a note.
TableFigure bytes_table(const std::vector<RankBytes>& held, int64_t total);

}  // namespace shardwise::detail
