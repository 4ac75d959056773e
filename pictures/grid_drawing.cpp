#include "pictures/grid_drawing.h"

#include "pictures/grid_segments.h"
#include "text/rank_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace shardwise::detail {
namespace {

constexpr int64_t kMaxRowSegments = 16;  // more rows of cells would fill screens
constexpr int64_t kUsualColumns = 48;    // inner columns of a grid of few cells
constexpr int64_t kMaxSheetsBehind = 2;  // of a stack of sheets
constexpr int64_t kHidden = -1;          // the owner of a place in a left-out segment
constexpr int64_t kOutside = -2;         // the owner of a place that no cell has

int64_t n_digits(int64_t number) { return static_cast<int64_t>(fmt::formatted_size("{}", number)); }

int64_t usual_lines(size_t n_segments, int64_t n_dims) {
  return n_dims < 2 ? 3 : std::min<int64_t>(12, 4 * static_cast<int64_t>(n_segments) + 1);
}

std::vector<int64_t> lines_around(const std::vector<int64_t>& extents, int64_t first) {
  std::vector<int64_t> lines = {first};
  for (const int64_t extent : extents) lines.push_back(lines.back() + extent + 1);
  return lines;
}

int64_t coordinate(const std::vector<GridSegment>& segments, size_t line) {
  return line < segments.size() ? segments[line].range.begin : segments.back().range.end;
}

/// A rectangle of characters to draw on, with a background colour per rank. Rows count from the top, columns from the left. Drawing outside of the
/// rectangle has no effect.
class TextCanvas {
 public:
  TextCanvas(int64_t n_rows, int64_t n_columns) : rows_(n_rows, std::vector<Place>(n_columns)) {}

  void put(int64_t row, int64_t column, std::string_view glyph) {
    if (row < 0 || row >= static_cast<int64_t>(rows_.size())) return;
    if (column < 0 || column >= static_cast<int64_t>(rows_[row].size())) return;
    rows_[row][column].glyph = glyph;
  }

  void text(int64_t row, int64_t column, std::string_view ascii) {
    for (size_t i = 0; i < ascii.size(); ++i) put(row, column++, ascii.substr(i, 1));
  }

  /// Gives a place the background colour of `rank`.
  void paint(int64_t row, int64_t column, int64_t rank) { rows_.at(row).at(column).rank = rank; }

  /// The lines in UTF-8, each with a newline and without trailing blanks; with colours if `color`.
  std::string to_string(bool color) const {
    std::string out;
    for (const auto& row : rows_) {
      size_t end = row.size();
      while (end > 0 && row[end - 1].glyph == " " && (!color || row[end - 1].rank < 0)) --end;
      int64_t current = -1;
      for (size_t column = 0; column < end; ++column) {
        const int64_t rank = color ? row[column].rank : -1;
        if (rank != current) {
          if (current >= 0) out += kPlain;
          if (rank >= 0) out += background(rank);
          current = rank;
        }
        out += row[column].glyph;
      }
      if (current >= 0) out += kPlain;
      out += '\n';
    }
    return out;
  }

 private:
  struct Place {
    std::string glyph = " ";  // in UTF-8
    int64_t rank = -1;        // of the background colour; -1: none
  };
  std::vector<std::vector<Place>> rows_;
};

/// Lengths of rows and columns are about proportional. If the width or kMaxRowSegments does not suffice, names become brief ("0-3" for "ranks 0-3"),
/// and then segments in the middle are left out. The terms of a Partial tensor are drawn as a stack of sheets.
class GridDrawing {
 public:
  GridDrawing(const TensorFigure& figure, const Slice& slice, int64_t max_width) : figure_(figure), slice_(slice) {
    const auto n_dims = static_cast<int64_t>(figure.sizes.size());
    rows_ = leave_out_middle(slice.rows, kMaxRowSegments);
    line_rows_ = lines_around(extents(rows_, 1, usual_lines(rows_.size(), n_dims)), n_dims == 0 ? 0 : 1);
    margin_ = n_dims >= 2 ? 3 + n_digits(rows_.back().range.end) : 2;
    fit_columns(max_width - margin_ - n_digits(slice.columns.back().end) - n_sheets_behind());
    assign_owners();
  }

  std::string draw(bool color) const {
    TextCanvas canvas(line_rows_.back() + 1 + n_sheets_behind(),
                      line_columns_.back() + n_digits(columns_.back().range.end) + 1 + n_sheets_behind());
    for (size_t i = 0; i < slice_.cells.size(); ++i) draw_cell(canvas, i);
    draw_left_out(canvas);
    draw_lines(canvas);
    draw_coordinates(canvas);
    draw_sheets_behind(canvas);
    return canvas.to_string(color);
  }

  /// Notes on parts that were left out or shortened; empty if there are none.
  std::string notes() const {
    std::string text;
    for (const std::string& note : {left_out_note(rows_, "rows"), left_out_note(columns_, "columns"),
                                    std::string(brief_ ? "the numbers in the cells are ranks" : "")}) {
      if (!note.empty()) text += "  " + note + "\n";
    }
    return text;
  }

 private:
  /// Full names if they fit, else brief ones, else brief ones with the middle left out; then as wide as usual, if that fits.
  void fit_columns(int64_t room) {
    const auto fits = [&](int64_t limit, bool brief) {
      columns_ = leave_out_middle(slice_.columns, limit);
      name_cells(brief);
      return static_cast<int64_t>(columns_.size()) * (least_width() + 1) < room;
    };
    const auto n = static_cast<int64_t>(slice_.columns.size());
    if (!fits(n, false) && !fits(n, true)) {
      int64_t limit = std::max<int64_t>(3, std::min(n - 1, room / 4));
      while (!fits(limit, true) && limit > 3) --limit;
    }
    const int64_t least = least_width(), n_lines = static_cast<int64_t>(columns_.size()) + 1;
    auto widths = extents(columns_, least, kUsualColumns);
    for (int64_t total = kUsualColumns; total > 0 && std::reduce(widths.begin(), widths.end()) + n_lines > room;
         --total) {
      widths = extents(columns_, least, total);
    }
    line_columns_ = lines_around(widths, margin_);
  }

  /// "rank 0", "ranks 0-3 partial(sum)"; brief: "0", "0-3 sum".
  void name_cells(bool brief) {
    brief_ = brief;
    names_.clear();
    for (const FigureCell& cell : slice_.cells) {
      names_.push_back(brief ? rank_list(cell.ranks) : rank_words(cell.ranks));
      if (!figure_.reductions.empty())
        names_.back() += fmt::format(fmt::runtime(brief ? " {}" : " partial({})"), figure_.reductions);
    }
  }

  /// The smallest width of a segment at which every name and coordinate has room.
  int64_t least_width() const {
    int64_t least = 3;
    for (const GridSegment& segment : columns_) least = std::max(least, n_digits(segment.range.begin));
    for (size_t i = 0; i < slice_.cells.size(); ++i) {
      const int64_t n = segments_within(columns_, slice_.cells[i].columns).length();
      if (n == 0) continue;
      const int64_t room =
          static_cast<int64_t>(names_[i].size()) + 2 - (n - 1);  // its name may cover the lines between its segments
      least = std::max(least, (room + n - 1) / n);
    }
    return least;
  }

  void assign_owners() {
    owners_.assign(rows_.size(), std::vector<int64_t>(columns_.size(), kOutside));
    for (size_t r = 0; r < rows_.size(); ++r)
      for (size_t c = 0; c < columns_.size(); ++c)
        if (rows_[r].n_left_out > 0 || columns_[c].n_left_out > 0) owners_[r][c] = kHidden;
    for (size_t i = 0; i < slice_.cells.size(); ++i) {
      const Interval rows = segments_within(rows_, slice_.cells[i].rows),
                     columns = segments_within(columns_, slice_.cells[i].columns);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        std::fill(owners_[r].begin() + columns.begin, owners_[r].begin() + columns.end, static_cast<int64_t>(i));
      }
    }
  }

  int64_t owner(int64_t row, int64_t column) const {
    const bool inside = row >= 0 && row < static_cast<int64_t>(rows_.size()) && column >= 0 &&
                        column < static_cast<int64_t>(columns_.size());
    return inside ? owners_[row][column] : kOutside;
  }

  /// Draws the background in one stripe per rank of the cell, and the name in the middle.
  void draw_cell(TextCanvas& canvas, size_t index) const {
    const auto& ranks = slice_.cells[index].ranks;
    const Interval rows = segments_within(rows_, slice_.cells[index].rows),
                   columns = segments_within(columns_, slice_.cells[index].columns);
    if (rows.length() == 0 || columns.length() == 0) return;
    const int64_t top = line_rows_[rows.begin] + 1, bottom = line_rows_[rows.end];
    const int64_t left = line_columns_[columns.begin] + 1, width = line_columns_[columns.end] - left;
    for (int64_t y = top; y < bottom; ++y) {
      for (int64_t x = 0; x < width; ++x)
        canvas.paint(y, left + x, ranks[x * static_cast<int64_t>(ranks.size()) / width]);
    }
    const std::string& name = names_[index];
    canvas.text((top + bottom - 1) / 2, left + (width - static_cast<int64_t>(name.size())) / 2, name);
  }

  void draw_left_out(TextCanvas& canvas) const {
    for (size_t r = 0; r < rows_.size(); ++r) {
      for (size_t c = 0; c < columns_.size(); ++c) {
        if (owners_[r][c] != kHidden) continue;
        canvas.put((line_rows_[r] + line_rows_[r + 1]) / 2, (line_columns_[c] + line_columns_[c + 1]) / 2,
                   rows_[r].n_left_out > 0 ? "⋮" : "⋯");
      }
    }
  }

  /// Draws a line between places of different owners, and at each crossing the character that joins the lines there.
  void draw_lines(TextCanvas& canvas) const {
    const auto vertical = [&](int64_t r, int64_t c) { return owner(r, c - 1) != owner(r, c); };
    const auto horizontal = [&](int64_t r, int64_t c) { return owner(r - 1, c) != owner(r, c); };
    constexpr std::array kJoints = {" ", "╵", "╷", "│", "╴", "┘", "┐", "┤",
                                    "╶", "└", "┌", "├", "─", "┴", "┬", "┼"};  // bits: up, down, left, right
    for (int64_t r = 0; r < static_cast<int64_t>(line_rows_.size()); ++r) {
      for (int64_t c = 0; c < static_cast<int64_t>(line_columns_.size()); ++c) {
        const int64_t y = line_rows_[r], x = line_columns_[c];
        const bool down = vertical(r, c), right = horizontal(r, c);
        const int joint =
            (vertical(r - 1, c) ? 1 : 0) + (down ? 2 : 0) + (horizontal(r, c - 1) ? 4 : 0) + (right ? 8 : 0);
        if (joint != 0) canvas.put(y, x, kJoints[joint]);
        for (int64_t i = y + 1; down && i < line_rows_[r + 1]; ++i) canvas.put(i, x, "│");
        for (int64_t i = x + 1; right && i < line_columns_[c + 1]; ++i) canvas.put(y, i, "─");
      }
    }
  }

  /// Draws the coordinate of each grid line: rows at the left, columns at the top.
  void draw_coordinates(TextCanvas& canvas) const {
    for (size_t r = 0; figure_.sizes.size() >= 2 && r < line_rows_.size(); ++r) {
      canvas.text(line_rows_[r], 0, fmt::format("{:>{}}", coordinate(rows_, r), margin_ - 1));
    }
    for (size_t c = 0; !figure_.sizes.empty() && c < line_columns_.size(); ++c) {
      canvas.text(0, line_columns_[c], fmt::format("{}", coordinate(columns_, c)));
    }
  }

  int64_t n_sheets_behind() const { return std::min(figure_.n_terms - 1, kMaxSheetsBehind); }

  /// Each sheet is one line lower and one column further right, so only its lower and right edges are visible.
  void draw_sheets_behind(TextCanvas& canvas) const {
    for (int64_t sheet = 1; sheet <= n_sheets_behind(); ++sheet) {
      const int64_t top = line_rows_.front() + sheet, bottom = line_rows_.back() + sheet;
      const int64_t left = line_columns_.front() + sheet, right = line_columns_.back() + sheet;
      canvas.put(top, right, "┐");
      for (int64_t y = top + 1; y < bottom; ++y) canvas.put(y, right, "│");
      canvas.put(bottom, right, "┘");
      for (int64_t x = left + 1; x < right; ++x) canvas.put(bottom, x, "─");
      canvas.put(bottom, left, "└");
    }
  }

  const TensorFigure& figure_;
  const Slice& slice_;
  std::vector<std::string> names_;  // by cell
  int64_t margin_ = 0;              // columns left of the grid
  bool brief_ = false;
  std::vector<GridSegment> rows_, columns_;
  std::vector<int64_t> line_rows_, line_columns_;  // on the canvas: the line before each segment, and the last line
  std::vector<std::vector<int64_t>> owners_;       // per segment of rows and columns: a cell, kHidden or kOutside
};

}  // namespace

std::string draw_grid(const TensorFigure& figure, const Slice& slice, int64_t max_width, bool color) {
  const GridDrawing drawing(figure, slice, max_width);
  return drawing.draw(color) + drawing.notes();
}

}  // namespace shardwise::detail
