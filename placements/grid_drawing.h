// placements/grid_drawing.h: cells of a picture laid out on a canvas: true relative places, a coordinate at every cut.
//
//     0      3       8
//   0 ┌──────┬───────┐
//     │rank 0│       │
//   2 ├──────┤ rank 1│
//     │rank 2│       │
//   5 └──────┴───────┘
#pragma once

#include "placements/grid_segments.h"

#include <string>
#include <vector>

namespace shardwise::detail {

/// A box that ranks hold, in rows and columns whatever dims the tensor has.
struct Cell {
  Interval rows, columns;  // not empty
  std::vector<int64_t> ranks;
};

struct GridOptions {
  int64_t n_dims = 2;      // the last of these have coordinates: 0 none, 1 the columns, 2 rows and columns
  std::string reductions;  // "sum" where the cells are Partial(sum)
  int64_t max_width = 100;
};

class TextCanvas;

/// Disjoint cells drawn as a grid. Lengths of rows and columns are about proportional. Where the width or kMaxRowBands
/// does not suffice names become brief ("0-3" for "ranks 0-3"), then the bands in the middle are left out.
class GridDrawing {
 public:
  /// Pre: `cells` is not empty.
  GridDrawing(std::vector<Cell> cells, const GridOptions& options);

  std::string draw(bool color) const;
  /// Lines on what was left out or shortened; empty where nothing was.
  std::string notes() const;

 private:
  void fit_columns(const std::vector<Band>& all, int64_t room);
  void name_cells(bool brief);
  int64_t least_width() const;
  void assign_owners();
  int64_t owner(int64_t row, int64_t column) const;
  void draw_cell(TextCanvas& canvas, size_t index) const;
  void draw_left_out(TextCanvas& canvas) const;
  void draw_lines(TextCanvas& canvas) const;
  void draw_coordinates(TextCanvas& canvas) const;

  std::vector<Cell> cells_;
  std::vector<std::string> names_;  // of the cells
  GridOptions options_;
  int64_t margin_ = 0;  // columns left of the grid
  bool brief_ = false;
  std::vector<Band> rows_, columns_;
  std::vector<int64_t> line_rows_, line_columns_;  // on the canvas: the line before each band, and the last
  std::vector<std::vector<int64_t>> owners_;       // per row band and column band: a cell, or none where left out
};

}  // namespace shardwise::detail
