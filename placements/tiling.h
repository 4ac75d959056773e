// placements/tiling.h: do boxes tile a tensor? Overlaps and holes, found without comparing every pair.
#pragma once

#include "placements/box.h"

#include <optional>
#include <utility>

namespace shardwise {

/// The positions of two boxes that share an element, in the order of the list; nothing where all are disjoint.
///
/// Pre:  all boxes have the same number of dims.
/// Cost: O(n log n + n k) for n boxes of which at most k lie side by side across the dim along which most boxes begin.
std::optional<std::pair<size_t, size_t>> find_overlap(c10::ArrayRef<Box> boxes);

/// A box of `whole` that no element of `boxes` belongs to; nothing where they cover it.
///
/// Pre: `boxes` are disjoint and inside `whole`. Cost: O(n) where they cover it, else about O(n log n).
std::optional<Box> find_hole(const Box& whole, c10::ArrayRef<Box> boxes);

}  // namespace shardwise
