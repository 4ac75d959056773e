// placements/flat_range.h: ranges of flattened leading dims, as boxes in the order of memory.
//
// [4, 5] flattened, its range [3,14):  [0:1, 3:5]  [1:2, 0:5]  [2:3, 0:4]
#pragma once

#include "placements/box.h"

namespace shardwise::detail {

__extension__ typedef __int128 Wide;  // a length times units may exceed 64 bits

/// The ranges of the mesh coordinates in a number of elements, by their units: that of `coord` begins at floor(length * units before `coord` /
/// all units) and ends where the next coordinate's range begins. The ranges adjoin and cover all elements. Pre: no unit is negative, one is
/// positive. Cost: O(units) once, then O(1) each.
class FlatRanges {
 public:
  explicit FlatRanges(c10::IntArrayRef units);
  Interval at(int64_t length, int64_t coord) const;

 private:
  std::vector<Wide> before_;  // prefix sums of the units; the last one is the sum of all
};

/// The number of elements in the first `n_flattened` dims of `whole`.
int64_t flat_length(const Box& whole, int64_t n_flattened);

/// The elements of `whole` whose index in the flattened first `n_flattened` dims is in `range`, as boxes in row-major order: at most 2
/// n_flattened - 1 boxes, none for an empty range.
std::vector<Box> boxes_of_range(const Box& whole, int64_t n_flattened, Interval range);

}  // namespace shardwise::detail
