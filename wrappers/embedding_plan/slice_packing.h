// wrappers/embedding_plan/slice_packing.h: slices onto ranks so that the rank that is done last is done early, within memory. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace shardwise::detail {

struct PackedItem {
  double seconds = 0;
  double n_bytes = 0;
};

/// What ranks have before, and may have: seconds and bytes per rank.
struct Ranks {
  std::vector<double> seconds;
  std::vector<double> n_bytes;
  double memory = 0;  // infinity: no limit
};

struct Packed {
  std::vector<int64_t> ranks;  // of the items
  int64_t last_rank = 0;       // that is done last
  double seconds = 0;          // that it takes
};

/// Puts the item that takes the largest share of `target` seconds, or of the room for bytes, first, onto the rank that is done first and has
/// room. Then, at most `n_moves` times, an item of the last rank moves to one of the first, or changes places with one there.
///
/// None where an item fits nowhere. Cost: O(items log) and, per move, the items of a few ranks.
std::optional<Packed> pack(const std::vector<PackedItem>& items, Ranks ranks, double target, int64_t n_moves);

}  // namespace shardwise::detail
