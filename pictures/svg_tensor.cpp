#include "pictures/grid_segments.h"
#include "pictures/rank_table.h"
#include "pictures/svg_figures.h"
#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise::detail {
namespace {

constexpr int64_t kMaxSegments = 24;                  // of rows or columns; more are indistinguishable
constexpr int64_t kLeastRow = 18, kLeastColumn = 26;  // pixels, enough for a short name
constexpr int64_t kUsualWidth = 440;
constexpr int64_t kLeastHeight = 120, kMostHeight = 340;
constexpr size_t kMaxStripes = 12;
constexpr int64_t kMaxSheets = 4;  // sheets drawn of a stack
constexpr size_t kMaxTermsNamed = 8;
constexpr int64_t kCoordinateHeight = 18;

std::string numbers(const Dims& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

/// The facts about a cell, a line each.
std::string title_of(const TensorFigure& figure, const FigureCell& cell) {
  const int64_t n_bytes = cell.box.numel() * figure.element_bytes, whole = bytes_of_tensor(figure);
  std::string text =
      fmt::format("{}: {}\noffsets: {}\nshape: {}\nbytes: {}", cell.ranks.size() == 1 ? "rank" : "ranks",
                  rank_list(cell.ranks), numbers(cell.box.offsets), numbers(cell.box.sizes), with_commas(n_bytes));
  if (whole > 0) text += fmt::format("\nshare: {} of the tensor", share_of(n_bytes, whole));
  if (cell.terms.empty()) {
    if (cell.ranks.size() > 1) text += fmt::format("\ncopies: {}", cell.ranks.size());
    return text;
  }
  text += fmt::format("\npartial: {} of {} terms", figure.reductions, cell.terms.size());
  for (size_t term = 0; term < std::min(cell.terms.size(), kMaxTermsNamed); ++term)
    text += fmt::format("\nterm {}: {}", term + 1, rank_words(cell.terms[term]));
  if (cell.terms.size() > kMaxTermsNamed)
    text += fmt::format("\n...: {} more terms", cell.terms.size() - kMaxTermsNamed);
  return text;
}

std::vector<int64_t> lines_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> lines = {0};
  for (const int64_t length : lengths) lines.push_back(lines.back() + length);
  return lines;
}

/// Draws one slice of a tensor.
class SliceDrawing {
 public:
  SliceDrawing(const TensorFigure& figure, const Slice& slice)
      : figure_(figure),
        slice_(slice),
        rows_(leave_out_middle(slice.rows, kMaxSegments)),
        columns_(leave_out_middle(slice.columns, kMaxSegments)) {
    const auto n_dims = static_cast<int64_t>(figure.sizes.size());
    column_lines_ = lines_of(extents(columns_, least_column(), n_dims == 0 ? 140 : kUsualWidth));
    row_lines_ = lines_of(extents(rows_, kLeastRow, n_dims < 2 ? 60 : usual_height()));
    left_ = n_dims < 2 ? 0 : text_width(fmt::format("{}", slice.rows.back().end)) + 8;
    top_ = n_dims < 1 ? 0 : kCoordinateHeight;
  }

  SvgBlock draw() {
    draw_left_out();
    for (const FigureCell& cell : slice_.cells) draw_cell(cell);
    if (!figure_.sizes.empty()) draw_column_coordinates();
    if (figure_.sizes.size() > 1) draw_row_coordinates();
    const int64_t overhang = text_width(fmt::format("{}", slice_.columns.back().end)) / 2;
    int64_t bottom = top_ + row_lines_.back() + 4;
    for (const std::string& note : {left_out_note(rows_, "rows"), left_out_note(columns_, "columns")}) {
      if (note.empty()) continue;
      bottom += kLineHeight;
      out_.text(left_, bottom - 4, note, R"( class="sw-faint")");
    }
    return out_.take(left_ + column_lines_.back() + overhang, bottom);
  }

 private:
  /// The least width of a column in which the number of a rank has room.
  int64_t least_column() const {
    int64_t least = kLeastColumn;
    for (const FigureCell& cell : slice_.cells)
      if (cell.ranks.size() == 1) least = std::max(least, text_width(rank_list(cell.ranks)) + 4);
    return least;
  }

  /// The height in the proportions of the slice, within bounds.
  int64_t usual_height() const {
    const double height = static_cast<double>(slice_.rows.back().end - slice_.rows.front().begin);
    const double width = static_cast<double>(slice_.columns.back().end - slice_.columns.front().begin);
    const double wanted = static_cast<double>(kUsualWidth) * height / width;
    return wanted < kLeastHeight ? kLeastHeight : wanted > kMostHeight ? kMostHeight : static_cast<int64_t>(wanted);
  }

  void draw_cell(const FigureCell& cell) {
    const Interval rows = segments_within(rows_, cell.rows), columns = segments_within(columns_, cell.columns);
    if (rows.length() == 0 || columns.length() == 0) return;
    const int64_t x = left_ + column_lines_[columns.begin], y = top_ + row_lines_[rows.begin];
    const int64_t width = column_lines_[columns.end] - column_lines_[columns.begin];
    const int64_t height = row_lines_[rows.end] - row_lines_[rows.begin];
    out_.open_cell(cell.ranks, title_of(figure_, cell));
    // Each sheet is a little higher and further right than the one in front of it; the first term is in front.
    const auto n_sheets =
        cell.terms.empty() ? 1 : std::min<int64_t>(kMaxSheets, static_cast<int64_t>(cell.terms.size()));
    const int64_t step = n_sheets == 1 ? 0 : std::max<int64_t>(2, std::min<int64_t>(6, std::min(width, height) / 10));
    const int64_t sheet_width = width - step * (n_sheets - 1), sheet_height = height - step * (n_sheets - 1);
    for (int64_t sheet = n_sheets; sheet-- > 0;) {
      const auto& ranks = cell.terms.empty() ? cell.ranks : cell.terms[sheet];
      draw_stripes(ranks, x + sheet * step, y + (n_sheets - 1 - sheet) * step, sheet_width, sheet_height);
    }
    draw_name(cell, x, y + (n_sheets - 1) * step, sheet_width, sheet_height);
    out_.close_group();
  }

  void draw_stripes(const std::vector<int64_t>& ranks, int64_t x, int64_t y, int64_t width, int64_t height) {
    const auto n = static_cast<int64_t>(std::min(ranks.size(), kMaxStripes));
    for (int64_t stripe = 0; stripe < n && n > 1; ++stripe) {
      const int64_t rank = ranks[stripe * static_cast<int64_t>(ranks.size()) / n];
      out_.rect(x + width * stripe / n, y, width * (stripe + 1) / n - width * stripe / n, height,
                fmt::format(" style=\"stroke:none\" fill=\"{}\"", color_of(rank)));
    }
    out_.rect(x, y, width, height, fmt::format(" fill=\"{}\"", n > 1 ? "none" : color_of(ranks.front())));
  }

  /// Draws the full name if it fits, else the numbers of the ranks, else nothing, because the title has the name.
  void draw_name(const FigureCell& cell, int64_t x, int64_t y, int64_t width, int64_t height) {
    std::string name = rank_words(cell.ranks);
    if (text_width(name) + 4 > width) name = rank_list(cell.ranks);
    if (text_width(name) + 2 > width || height < 14) return;
    const std::string partial = figure_.reductions.empty() ? "" : fmt::format("partial({})", figure_.reductions);
    const bool has_second = !partial.empty() && height >= 2 * kLineHeight && text_width(partial) + 4 <= width;
    const int64_t middle = y + height / 2 + 4 - (has_second ? kLineHeight / 2 : 0);
    constexpr std::string_view kName = R"( class="sw-name")";
    out_.text(x + width / 2, middle, name, kName, SvgWriter::Anchor::kMiddle);
    if (has_second) out_.text(x + width / 2, middle + kLineHeight, partial, kName, SvgWriter::Anchor::kMiddle);
  }

  void draw_left_out() {
    constexpr std::string_view kGap = R"( class="sw-gap" stroke-dasharray="3 3")";
    for (size_t r = 0; r < rows_.size(); ++r)
      if (rows_[r].n_left_out > 0)
        draw_gap(left_, top_ + row_lines_[r], column_lines_.back(), row_lines_[r + 1] - row_lines_[r], "⋮", kGap);
    for (size_t c = 0; c < columns_.size(); ++c)
      if (columns_[c].n_left_out > 0)
        draw_gap(left_ + column_lines_[c], top_, column_lines_[c + 1] - column_lines_[c], row_lines_.back(), "⋯", kGap);
  }

  void draw_gap(int64_t x, int64_t y, int64_t width, int64_t height, std::string_view dots,
                std::string_view attributes) {
    out_.rect(x, y, width, height, attributes);
    out_.text(x + width / 2, y + height / 2 + 4, dots, R"( class="sw-faint")", SvgWriter::Anchor::kMiddle);
  }

  /// Draws coordinates that do not overlap; always the first and the last.
  void draw_column_coordinates() {
    const size_t n = columns_.size();
    int64_t free_from = 0;
    const std::string last = fmt::format("{}", columns_.back().range.end);
    const int64_t last_begin = column_lines_[n] - text_width(last) / 2;
    for (size_t c = 0; c <= n; ++c) {
      const std::string words = c < n ? fmt::format("{}", columns_[c].range.begin) : last;
      const int64_t half = text_width(words) / 2, at = column_lines_[c];
      if (c > 0 && c < n && (at - half < free_from || at + half + 4 > last_begin)) continue;
      free_from = at + half + 6;
      out_.text(left_ + at, top_ - 5, words, R"( class="sw-faint")",
                c == 0 ? SvgWriter::Anchor::kStart : SvgWriter::Anchor::kMiddle);
    }
  }

  void draw_row_coordinates() {
    const size_t n = rows_.size();
    int64_t free_from = 0;
    for (size_t r = 0; r <= n; ++r) {
      const int64_t at = row_lines_[r];
      if (r > 0 && r < n && (at < free_from || at + 12 > row_lines_[n])) continue;
      free_from = at + 13;
      out_.text(left_ - 5, top_ + at + 4, fmt::format("{}", r < n ? rows_[r].range.begin : rows_.back().range.end),
                R"( class="sw-faint")", SvgWriter::Anchor::kEnd);
    }
  }

  const TensorFigure& figure_;
  const Slice& slice_;
  std::vector<GridSegment> rows_, columns_;
  std::vector<int64_t> row_lines_, column_lines_;
  int64_t left_ = 0, top_ = 0;
  SvgWriter out_;
};

}  // namespace

SvgBlock svg_of(const TensorFigure& figure, const Slice& slice) { return SliceDrawing(figure, slice).draw(); }

}  // namespace shardwise::detail
