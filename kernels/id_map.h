// kernels/id_map.h: from 64-bit ids to rows: a hash table in open addressing over raw memory, and buckets of rows.
//
//   rows 0 1 2 3 hold the ids 70 81 -3 12:   find(map, -3) = 2, find(map, 5) = -1
#pragma once

#include "kernels/id_groups.h"

namespace shardwise::kernels {

/// `n_rows` rows in `n_buckets` runs of equal length, the first few one longer. An id belongs to one bucket by its hash, whoever asks.
/// Pre: 0 < n_buckets <= n_rows, n_buckets < 2^31.
struct IdBuckets {
  int64_t n_rows = 1;
  int64_t n_buckets = 1;

  /// By the hash's upper half (Lemire, Fast Random Integer Generation in an Interval, 2019).
  int64_t bucket_of(int64_t id) const {
    return static_cast<int64_t>((mixed(id, 0) >> 32) * static_cast<uint64_t>(n_buckets) >> 32);
  }
  /// Of bucket `n_buckets`: n_rows.
  int64_t first_row(int64_t bucket) const {
    const int64_t longer = n_rows % n_buckets;
    return bucket * (n_rows / n_buckets) + (bucket < longer ? bucket : longer);
  }
  int64_t bucket_of_row(int64_t row) const {
    const int64_t length = n_rows / n_buckets, longer = n_rows % n_buckets;
    return row < longer * (length + 1) ? row / (length + 1) : longer + (row - longer * (length + 1)) / length;
  }
};

/// The map of some rows: `slots[i]` is a row or -1, and `ids[row]` the row's id. Probes run from an id's slot upwards, by ones.
struct IdMap {
  int64_t* slots;
  int64_t n_slots;  // a power of two, see slots_for()
  const int64_t* ids;

  int64_t slot_of(int64_t id) const { return static_cast<int64_t>(mixed(id, 0) & static_cast<uint64_t>(n_slots - 1)); }
  int64_t next(int64_t slot) const { return (slot + 1) & (n_slots - 1); }
};

/// For up to `n_rows` rows: at most half of the slots are taken.
int64_t slots_for(int64_t n_rows);

/// The row of `id`; -1 where it has none. Cost: 1.5 probes on average for ids that are there, 2.5 for others (Knuth, The Art of Computer
/// Programming, vol. 3, 6.4).
inline int64_t find(const IdMap& map, int64_t id) {
  for (int64_t slot = map.slot_of(id); map.slots[slot] >= 0; slot = map.next(slot))
    if (map.ids[map.slots[slot]] == id) return map.slots[slot];
  return -1;
}

/// Enters `row` under ids[row]. Pre: that id has no row yet.
void insert(const IdMap& map, int64_t row);

/// Each of the ids once, in the order in which they come first: `unique[place_of[i]] == ids[i]`, and it comes `counts[place_of[i]]` times.
/// Returns their number. Memory: `n` entries each, and slots_for(n) slots of -1. Cost: a search per id.
int64_t unique_ids(const int64_t* ids, int64_t n, int64_t* slots, int64_t* unique, int64_t* place_of, int64_t* counts);

/// Takes `row` out. The rows behind it close up, so nothing marks where it was (Knuth, ibid., algorithm R).
/// Pre: it is there, under ids[row].
void erase(const IdMap& map, int64_t row);

}  // namespace shardwise::kernels
