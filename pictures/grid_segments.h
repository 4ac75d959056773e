// pictures/grid_segments.h: the segments of a dimension that are drawn, and the number of characters of each.
//
// Rows [0,1) [1,4) [4,5) between grid lines: three segments, drawn with, say, 1, 3 and 1 lines.
#pragma once

#include "placements/box.h"

#include <string>
#include <vector>

namespace shardwise::detail {

struct GridSegment {
  Interval range;
  int64_t n_left_out = 0;  // above 0: stands for that many segments that are left out
};

/// At most `limit` segments (at least 3) of `ranges`: one segment replaces those in the middle.
std::vector<GridSegment> leave_out_middle(const std::vector<Interval>& ranges, int64_t limit);

/// The half-open range of positions of the segments that are wholly within `range`; empty if there are none.
Interval segments_within(const std::vector<GridSegment>& segments, Interval range);

/// Characters per segment: about `total` shared by length, at least `least` each.
std::vector<int64_t> extents(const std::vector<GridSegment>& segments, int64_t least, int64_t total);

/// "rows [6, 60) left out: 54 of 64 segments", or "" if all are drawn.
std::string left_out_note(const std::vector<GridSegment>& segments, const char* name);

}  // namespace shardwise::detail
