// kernels/id_groups.h: groups ids by the row that they name, so that each row is processed once.
//
//   ids 7 2 7 9 2, rows [0, 8):   rows 2 7   starts 0 2 4   order 1 4 0 2   group_of 1 0 1 -1 0
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// The lowest and the highest id; {INT64_MAX, INT64_MIN} if there are no ids.
struct IdRange {
  int64_t lowest;
  int64_t highest;
};
IdRange range_of(const Ids& ids, int64_t begin, int64_t end);

/// A 64-bit hash of the ids and their order. The digests of parts add up to the digest of the whole.
uint64_t digest_of(const Ids& ids, int64_t begin, int64_t end);

/// One id's term of digest_of(): id and place mixed by splitmix64 (Steele, Lea and Flood, 2014).
SHARDWISE_ANYWHERE inline uint64_t mixed(int64_t id, int64_t place) {
  uint64_t word = static_cast<uint64_t>(id) + static_cast<uint64_t>(place + 1) * 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

/// The result of group_ids() for `n_ids` ids.
struct Groups {
  const int64_t* order;
  const int64_t* starts;
  int64_t n;
  int64_t n_ids;
};

/// Output and scratch memory for group_ids(): `ids.n` entries each, except one more for `starts` and twice as many for `scratch`.
struct GroupMemory {
  int64_t* rows;
  int64_t* starts;
  int64_t* order;
  int64_t* group_of;  // null: not requested
  uint64_t* scratch;
};

/// Groups the ids in [first_row, first_row + n_rows) except `skipped`. Group g is row `first_row + rows[g]`; its ids are `order[starts[g]
/// .. starts[g + 1])`, in their original order. Rows ascend. Returns the number of groups.
///
/// Radix sort by the row's significant bits (Knuth, The Art of Computer Programming, vol. 3, 5.2.5). Cost: a pass over the ids per 11 bits.
/// Pre: bits of n_rows and of ids.n are at most 64 together.
int64_t group_ids(const Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped, const GroupMemory& memory);

}  // namespace shardwise::kernels
