// pictures/grid_drawing.h: draws the cells of a slice in characters: true relative places, a coordinate at every grid line.
//
//     0      3       8
//   0 ┌──────┬───────┐
//     │rank 0│       │
//   2 ├──────┤ rank 1│
//     │rank 2│       │
//   5 └──────┴───────┘
#pragma once

#include "pictures/tensor_figure.h"

#include <string>

namespace shardwise::detail {

/// The grid, then notes on parts that were left out or shortened. `color`: with ANSI background colours. Pre: `slice` is a slice of `figure` with
/// cells.
std::string draw_grid(const TensorFigure& figure, const Slice& slice, int64_t max_width, bool color);

}  // namespace shardwise::detail
