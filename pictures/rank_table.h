// pictures/rank_table.h: the pieces of each rank as lines of a table, and how evenly the bytes lie.
//
//   rank  shape    offsets  bytes   share
//      0  [1, 16]  [0, 0]      64   12.5%
//      1  [3, 16]  [1, 0]     192   37.5%
//   imbalance 1.50: rank 1 holds 192 bytes, the mean is 128
#pragma once

#include "pictures/picture.h"

#include <string>

namespace shardwise::detail {

/// A line per piece in the order of the grid, a sum for ranks of several pieces. Of many ranks (or pieces of a rank) the
/// middle is left out, and a line says so. Shares are of the whole tensor's bytes, so replicas hold 100% each.
std::string rank_table(const Picture& picture, bool color);

}  // namespace shardwise::detail
