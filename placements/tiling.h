// placements/tiling.h: whether boxes tile a tensor. Finds overlaps and holes without comparing every pair.
#pragma once

#include "placements/box.h"

#include <optional>
#include <utility>

namespace shardwise {

/// The list positions of two boxes that share an element, in ascending order; nothing if all boxes are disjoint.
///
/// Pre:  all boxes have the same number of dims.
/// Cost: O(n log n + n k) for n boxes, at most k of which overlap along the dim in which most boxes begin.
std::optional<std::pair<size_t, size_t>> find_overlap(c10::ArrayRef<Box> boxes);

/// A non-empty box inside `whole` that `boxes` do not cover; nothing if they cover it.
///
/// Pre: `boxes` are disjoint and inside `whole`. Cost: O(n) if they cover it, else about O(n log n).
std::optional<Box> find_hole(const Box& whole, c10::ArrayRef<Box> boxes);

}  // namespace shardwise
