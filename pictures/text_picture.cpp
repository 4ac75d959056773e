#include "pictures/grid_drawing.h"
#include "pictures/mesh_figure.h"
#include "pictures/picture_formats.h"
#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise::detail {
namespace {

constexpr size_t kMaxSlices = 5, kFirstSlices = 3, kLastSlices = 1;
constexpr int64_t kMaxMeshRows = 16, kMaxMeshPlanes = 6, kMaxTrafficBlocks = 10, kFewestTrafficBlocks = 2;

/// Draws the figures of a picture one below the other.
class TextDrawing {
 public:
  explicit TextDrawing(const PictureOptions& options) : options_(options) {}

  std::string draw(const TensorFigure& figure) const {
    std::string text = caption(figure, options_.max_width) + "\n";
    const auto& slices = figure.slices;
    if (slices.empty()) text += "  no elements, nothing to draw\n";
    for (size_t i = 0; i < slices.size(); ++i) {
      if (slices.size() > kMaxSlices && i == kFirstSlices) {
        text += left_out(figure, i, slices.size() - kLastSlices);
        i = slices.size() - kLastSlices;
      }
      text += draw_slice(figure, slices[i]);
    }
    const std::string note = note_on_terms(figure);
    return note.empty() ? text : text + "  " + note + "\n";
  }

  std::string draw(const MeshFigure& mesh) const {
    std::string text = caption(mesh) + "\n";
    const int64_t max_columns = std::max<int64_t>(4, options_.max_width / 10 - 1);
    const std::vector<MeshPlane> planes = planes_of(mesh, kMaxMeshRows, max_columns, kMaxMeshPlanes);
    for (const MeshPlane& plane : planes) {
      if (!plane.heading.empty()) text += "  " + plane.heading + "\n";
      if (plane.ranks.empty()) continue;
      std::vector<std::string> names;
      for (const int64_t column : plane.columns) names.push_back(place(plane.column_axis, column));
      std::vector<TextTable::Column> columns{{""}};
      for (const std::string& name : names) columns.push_back({name, Align::kRight});
      TextTable table(std::move(columns), 2);
      for (size_t row = 0; row < plane.ranks.size(); ++row) {
        std::vector<std::string> words{place(plane.row_axis, plane.rows[row])};
        for (const int64_t rank : plane.ranks[row]) words.push_back(rank == kLeftOut ? "..." : fmt::format("{}", rank));
        table.add(std::move(words));
      }
      text += table.to_string();
    }
    const std::string note = note_on_planes(mesh, planes);
    return note.empty() ? text : text + "  " + note + "\n";
  }

  std::string draw(const TableFigure& figure) const {
    std::vector<TextTable::Column> columns;
    for (const auto& head : figure.heads) columns.push_back({head.text, head.is_number ? Align::kRight : Align::kLeft});
    TextTable table(std::move(columns), 2);
    for (const auto& line : figure.lines) {
      if (line.words.empty())
        table.add_note(line.note);
      else
        table.add(line.words, options_.color && line.rank >= 0 ? background(line.rank) : "");
    }
    std::string text = figure.lines.empty() ? "" : table.to_string();
    for (const std::string& note : figure.notes) text += "  " + note + "\n";
    return text;
  }

  /// A line per sending block, a column per receiving block, with as many blocks as fit the width.
  std::string draw(const TrafficFigure& traffic) const {
    if (traffic.matrix.total() == 0) return "  nothing is sent\n";
    for (int64_t n_blocks = kMaxTrafficBlocks;; --n_blocks) {
      std::string text = draw_matrix(folded(traffic.matrix, n_blocks));
      if (n_blocks == kFewestTrafficBlocks || static_cast<int64_t>(text.find('\n')) <= options_.max_width) return text;
    }
  }

 private:
  static std::string draw_matrix(const TrafficMatrix& matrix) {
    std::vector<std::string> names;
    for (const auto& block : matrix.blocks) names.push_back(rank_list(block));
    std::vector<TextTable::Column> columns{{"from \\ to", Align::kRight}};
    for (const std::string& name : names) columns.push_back({name, Align::kRight});
    columns.push_back({"sent", Align::kRight});
    TextTable table(std::move(columns), 2);
    std::vector<int64_t> received(names.size(), 0);
    for (size_t from = 0; from < names.size(); ++from) {
      std::vector<std::string> words{names[from]};
      int64_t sent = 0;
      for (size_t to = 0; to < names.size(); ++to) {
        const int64_t n_bytes = matrix.at(from, to);
        sent += n_bytes;
        received[to] += n_bytes;
        words.push_back(n_bytes == 0 ? "." : with_commas(n_bytes));
      }
      words.push_back(with_commas(sent));
      table.add(std::move(words));
    }
    std::vector<std::string> sums{"received"};
    for (const int64_t n_bytes : received) sums.push_back(with_commas(n_bytes));
    sums.push_back(with_commas(matrix.total()));
    table.add(std::move(sums));
    return table.to_string();
  }

  /// "tp 3".
  static std::string place(const std::string& axis, int64_t index) {
    if (axis.empty()) return "";
    return index == kLeftOut ? "..." : fmt::format("{} {}", axis, index);
  }

  std::string draw_slice(const TensorFigure& figure, const Slice& slice) const {
    const std::string where = heading(slice, figure.sizes);
    if (slice.cells.empty()) return fmt::format("  {} left out: {} ranges of indices\n", where, slice.n_left_out);
    return (figure.sizes.size() > 2 ? "  " + where + "\n" : "") +
           draw_grid(figure, slice, options_.max_width, options_.color);
  }

  static std::string left_out(const TensorFigure& figure, size_t first, size_t end) {
    return fmt::format("  ... slices from {} to {} left out\n", heading(figure.slices[first], figure.sizes),
                       heading(figure.slices[end - 1], figure.sizes));
  }

  const PictureOptions& options_;
};

}  // namespace

std::string draw_text(const Picture& picture, const PictureOptions& options) {
  const TextDrawing drawing(options);
  std::string text = picture.title.empty() ? "" : picture.title + "\n";
  for (const Figure& figure : picture.figures) {
    // The tensor's own line names its mesh.
    if (figure.is_beside && std::holds_alternative<MeshFigure>(figure.content)) continue;
    if (!figure.heading.empty()) text += figure.heading + "\n";
    text += std::visit([&](const auto& content) { return drawing.draw(content); }, figure.content);
  }
  return text;
}

}  // namespace shardwise::detail
