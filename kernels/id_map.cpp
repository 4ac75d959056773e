#include "kernels/id_map.h"

#include <algorithm>
#include <bit>

namespace shardwise::kernels {

int64_t slots_for(int64_t n_rows) {
  return static_cast<int64_t>(std::bit_ceil(2 * static_cast<uint64_t>(std::max<int64_t>(n_rows, 1))));
}

void insert(const IdMap& map, int64_t row) {
  int64_t slot = map.slot_of(map.ids[row]);
  while (map.slots[slot] >= 0) slot = map.next(slot);
  map.slots[slot] = row;
}

int64_t unique_ids(const int64_t* ids, int64_t n, int64_t* slots, int64_t* unique, int64_t* place_of, int64_t* counts) {
  const IdMap map{slots, slots_for(n), unique};
  int64_t n_unique = 0;
  for (int64_t i = 0; i < n; ++i) {
    int64_t place = find(map, ids[i]);
    if (place < 0) {
      place = n_unique++;
      unique[place] = ids[i];
      counts[place] = 0;
      insert(map, place);
    }
    place_of[i] = place;
    ++counts[place];
  }
  return n_unique;
}

void erase(const IdMap& map, int64_t row) {
  int64_t hole = map.slot_of(map.ids[row]);
  while (map.slots[hole] != row) hole = map.next(hole);
  const int64_t mask = map.n_slots - 1;
  for (int64_t slot = map.next(hole); map.slots[slot] >= 0; slot = map.next(slot)) {
    // A row may move back to the hole unless its probe sequence starts after the hole.
    const int64_t home = map.slot_of(map.ids[map.slots[slot]]);
    if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
    map.slots[hole] = map.slots[slot];
    hole = slot;
  }
  map.slots[hole] = -1;
}

}  // namespace shardwise::kernels
