// placements/grid_segments.h: the stretches between the cuts of one dimension, and how many characters each is drawn with.
//
// Pieces [0,1) [1,4) [4,5) of 5 rows: three bands, drawn with, say, 1, 3 and 1 lines.
#pragma once

#include "placements/box.h"

#include <string>
#include <vector>

namespace shardwise::detail {

struct Band {
  Interval range;
  int64_t n_left_out = 0;  // above 0: stands for that many bands that are not drawn
};

/// The bands between all begins and ends of `ranges`, ascending. Empty ranges are ignored.
std::vector<Band> bands_between(const std::vector<Interval>& ranges);

/// At most `limit` bands (at least 3): those in the middle become one that stands for them.
std::vector<Band> leave_out_middle(const std::vector<Band>& bands, int64_t limit);

/// The half-open range of the positions of the bands that lie wholly within `range`; empty where there is none.
Interval bands_within(const std::vector<Band>& bands, Interval range);

/// Characters per band: about `total` shared by length, at least `least` each.
std::vector<int64_t> extents(const std::vector<Band>& bands, int64_t least, int64_t total);

/// "rows [6, 60) left out: 54 of 64 bands", or nothing where all are drawn.
std::string left_out_note(const std::vector<Band>& bands, const char* name);

}  // namespace shardwise::detail
