// kernels/id_map.h: maps 64-bit ids to rows: a hash table with open addressing over raw memory, and buckets of rows.
//
//   rows 0 1 2 3 hold the ids 70 81 -3 12:   find(map, -3) = 2, find(map, 5) = -1
#pragma once

#include "kernels/id_groups.h"

namespace shardwise::kernels {

/// `n_rows` rows in `n_buckets` runs of equal length, except that the first few have one row more. An id's hash determines its bucket, so
/// all ranks agree on it. Pre: 0 < n_buckets <= n_rows, n_buckets < 2^31.
struct IdBuckets {
  int64_t n_rows = 1;
  int64_t n_buckets = 1;

  /// Uses the hash's upper half (Lemire, Fast Random Integer Generation in an Interval, 2019).
  int64_t bucket_of(int64_t id) const {
    return static_cast<int64_t>((mixed(id, 0) >> 32) * static_cast<uint64_t>(n_buckets) >> 32);
  }
  /// The first row of a bucket; n_rows for `n_buckets`.
  int64_t first_row(int64_t bucket) const {
    const int64_t longer = n_rows % n_buckets;
    return bucket * (n_rows / n_buckets) + (bucket < longer ? bucket : longer);
  }
  int64_t bucket_of_row(int64_t row) const {
    const int64_t length = n_rows / n_buckets, longer = n_rows % n_buckets;
    return row < longer * (length + 1) ? row / (length + 1) : longer + (row - longer * (length + 1)) / length;
  }
};

/// The map of some rows: `slots[i]` is a row or -1, and `ids[row]` is the row's id. Linear probing: a probe starts at the id's slot and
/// goes up by one.
struct IdMap {
  int64_t* slots;
  int64_t n_slots;  // a power of two, see slots_for()
  const int64_t* ids;

  int64_t slot_of(int64_t id) const { return static_cast<int64_t>(mixed(id, 0) & static_cast<uint64_t>(n_slots - 1)); }
  int64_t next(int64_t slot) const { return (slot + 1) & (n_slots - 1); }
};

/// The number of slots for up to `n_rows` rows. At most half of them are used.
int64_t slots_for(int64_t n_rows);

/// The row of `id`, or -1 if it has none. Cost: on average 1.5 probes for ids in the map, 2.5 for others (Knuth, The Art of Computer
/// Programming, vol. 3, 6.4).
inline int64_t find(const IdMap& map, int64_t id) {
  for (int64_t slot = map.slot_of(id); map.slots[slot] >= 0; slot = map.next(slot))
    if (map.ids[map.slots[slot]] == id) return map.slots[slot];
  return -1;
}

/// Enters `row` under ids[row]. Pre: this id has no row yet.
void insert(const IdMap& map, int64_t row);

/// Finds the distinct ids, in order of first occurrence: `unique[place_of[i]] == ids[i]`, and that id occurs `counts[place_of[i]]` times.
/// Returns their number. Memory: `n` entries each, and slots_for(n) slots set to -1. Cost: one search per id.
int64_t unique_ids(const int64_t* ids, int64_t n, int64_t* slots, int64_t* unique, int64_t* place_of, int64_t* counts);

/// Removes `row`. Later rows of the probe sequence close the gap, so no tombstone is needed (Knuth, ibid., algorithm R).
/// Pre: the row is in the map, under ids[row].
void erase(const IdMap& map, int64_t row);

}  // namespace shardwise::kernels
