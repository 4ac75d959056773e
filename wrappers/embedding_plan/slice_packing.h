// wrappers/embedding_plan/slice_packing.h: packs slices onto ranks so that the last rank finishes early, within a memory limit. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace shardwise::detail {

struct PackedItem {
  double seconds = 0;
  double n_bytes = 0;
};

/// The load that ranks have before packing, and the limit of bytes.
struct Ranks {
  std::vector<double> seconds;
  std::vector<double> n_bytes;
  double memory = 0;  // infinity: no limit
};

struct Packed {
  std::vector<int64_t> ranks;  // by item
  int64_t last_rank = 0;       // the rank that finishes last
  double seconds = 0;          // of the last rank
};

/// Items are ordered by their share of `target` seconds or of the room for bytes, whichever is larger, largest first. Each is put on the rank that
/// finishes first and has room. Then, at most `n_moves` times, an item of the last rank moves to one of the first ranks, or is swapped with an item
/// there.
///
/// Returns nullopt if an item fits nowhere. Cost: O(items log) and, per move, the items of a few ranks.
std::optional<Packed> pack(const std::vector<PackedItem>& items, Ranks ranks, double target, int64_t n_moves);

}  // namespace shardwise::detail
