// placements/flat_range.h: ranges of flattened leading dims, as boxes in the order of memory.
//
// [4, 5] flattened, its range [3,14):  [0:1, 3:5]  [1:2, 0:5]  [2:3, 0:4]
#pragma once

#include "placements/box.h"

namespace shardwise::detail {

__extension__ typedef __int128 Wide;  // a length times units may exceed 64 bits

/// The range of `length` elements that the mesh coordinate `coord` has: from floor(length * units before it / all units) to where the
/// next one's begins. Ranges adjoin and cover the whole. Pre: some unit is above 0, none below. Cost: O(units).
Interval flat_range(int64_t length, c10::IntArrayRef units, int64_t coord);

/// The same for many coordinates. Cost: O(units) once, then O(1) each.
class FlatRanges {
 public:
  explicit FlatRanges(c10::IntArrayRef units);
  Interval at(int64_t length, int64_t coord) const;

 private:
  std::vector<Wide> before_;  // the units before each coordinate, and all of them
};

/// How many elements the first `n_flattened` dims of `whole` have.
int64_t flat_length(const Box& whole, int64_t n_flattened);

/// The elements of `whole` in `range` of its flattened first `n_flattened` dims: boxes that follow each other in row-major memory, at most
/// 2 n_flattened - 1 of them; none of an empty range.
std::vector<Box> boxes_of_range(const Box& whole, int64_t n_flattened, Interval range);

}  // namespace shardwise::detail
