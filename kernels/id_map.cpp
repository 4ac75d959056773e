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

void erase(const IdMap& map, int64_t row) {
  int64_t hole = map.slot_of(map.ids[row]);
  while (map.slots[hole] != row) hole = map.next(hole);
  const int64_t mask = map.n_slots - 1;
  for (int64_t slot = map.next(hole); map.slots[slot] >= 0; slot = map.next(slot)) {
    // A row may move back to the hole unless its probes begin behind it.
    const int64_t home = map.slot_of(map.ids[map.slots[slot]]);
    if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
    map.slots[hole] = map.slots[slot];
    hole = slot;
  }
  map.slots[hole] = -1;
}

}  // namespace shardwise::kernels
