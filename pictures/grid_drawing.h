// pictures/grid_drawing.h: draws the cells of a slice in characters: true relative places, a coordinate at every grid line.
//
//     0      3       8
//   0 ┌──────┬───────┐
//     │rank 0│       │
//   2 ├──────┤ rank 1│
//     │rank 2│       │
//   5 └──────┴───────┘
#pragma once

#include "pictures/grid_segments.h"
#include "pictures/tensor_figure.h"

#include <string>
#include <vector>

namespace shardwise::detail {

class TextCanvas;

/// Lengths of rows and columns are about proportional. If the width or kMaxRowSegments does not suffice, names become brief ("0-3" for "ranks 0-3"),
/// and then segments in the middle are left out. The terms of a Partial tensor are drawn as a stack of sheets.
class GridDrawing {
 public:
  /// Pre: `slice` is a slice of `figure` with cells, and both outlive this object.
  GridDrawing(const TensorFigure& figure, const Slice& slice, int64_t max_width);

  std::string draw(bool color) const;
  /// Notes on parts that were left out or shortened; empty if there are none.
  std::string notes() const;

 private:
  void fit_columns(int64_t room);
  void name_cells(bool brief);
  int64_t least_width() const;
  void assign_owners();
  int64_t owner(int64_t row, int64_t column) const;
  void draw_cell(TextCanvas& canvas, size_t index) const;
  void draw_left_out(TextCanvas& canvas) const;
  void draw_lines(TextCanvas& canvas) const;
  void draw_coordinates(TextCanvas& canvas) const;
  int64_t n_sheets_behind() const;
  void draw_sheets_behind(TextCanvas& canvas) const;

  const TensorFigure& figure_;
  const Slice& slice_;
  std::vector<std::string> names_;  // by cell
  int64_t margin_ = 0;              // columns left of the grid
  bool brief_ = false;
  std::vector<GridSegment> rows_, columns_;
  std::vector<int64_t> line_rows_, line_columns_;  // on the canvas: the line before each segment, and the last line
  std::vector<std::vector<int64_t>> owners_;       // per segment of rows and columns: a cell, kHidden or kOutside
};

}  // namespace shardwise::detail
