// placements/picture.h: a layout drawn as text: who holds what, with true coordinates, bytes and imbalance.
#pragma once

#include "placements/layout.h"

#include <string>

namespace shardwise {

struct PictureOptions {
  int64_t element_bytes = 4;  // size of one element
  bool color = false;         // ANSI background colours, one per rank
  int64_t max_width = 100;    // columns of the terminal
};

/// Draws 0-D to 2-D tensors as a grid of the distinct boxes, each naming its ranks, with a table per rank
/// (pieces' shape, offsets, bytes, share of the total) and the imbalance (largest rank's bytes over the mean).
///
/// A pure function of the layout, equal on every rank and on non-members.
/// Throws: c10::ValueError for more than 2 dims.
std::string picture(const Layout& layout, const PictureOptions& options = {});

}  // namespace shardwise
