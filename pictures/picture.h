// pictures/picture.h: a layout as a picture: who holds what, with true coordinates, bytes and imbalance.
//
//   Layout -> picture_of -> Picture (cells, grid lines, shares: a value) -> one of pictures/picture_formats.h -> text
#pragma once

#include "placements/layout.h"

#include <string>
#include <vector>

namespace shardwise {

/// A box that ranks hold, as rows and columns whatever dims the tensor has: [0, 1) of a dim that it lacks.
struct PictureCell {
  Interval rows, columns;      // not empty
  std::vector<int64_t> ranks;  // in the order of the grid
};

/// What one rank holds.
struct RankShare {
  int64_t rank = 0;
  std::vector<Box> boxes;
  int64_t n_bytes = 0;
};

/// What a picture shows, whatever draws it.
struct Picture {
  Layout layout;
  int64_t element_bytes = 0;
  std::vector<PictureCell> cells;       // disjoint: the distinct boxes that have elements
  std::vector<Interval> rows, columns;  // between the grid lines, ascending; the lines stand where cells begin or end
  std::string reductions;               // "sum" or "sum, max" of the Partial mesh dims; empty where there are none
  std::vector<RankShare> shares;        // of every rank, in the order of the grid
};

struct PictureOptions {
  int64_t element_bytes = 4;    // size of one element
  bool color = false;           // text: ANSI background colours, one per rank
  int64_t max_width = 100;      // text: columns of the terminal
  std::string format = "text";  // a name of pictures/picture_formats.h
};

/// A pure function of the layout, equal on every rank and on non-members. Cost: O(boxes of all ranks).
///
/// Throws: c10::ValueError for more than 2 dims.
Picture picture_of(const Layout& layout, int64_t element_bytes);

/// Draws 0-D to 2-D tensors as a grid of the distinct boxes, each naming its ranks, with a table per rank
/// (pieces' shape, offsets, bytes, share of the total) and the imbalance (largest rank's bytes over the mean).
///
/// Throws: c10::ValueError for more than 2 dims, and for an unknown format, naming the known ones.
std::string picture(const Layout& layout, const PictureOptions& options = {});

}  // namespace shardwise
