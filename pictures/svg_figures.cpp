#include "pictures/svg_figures.h"

#include "pictures/mesh_figure.h"
#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shardwise::detail {
namespace {

constexpr std::string_view kFaint = R"( class="sw-faint")";
constexpr auto kMiddle = SvgWriter::Anchor::kMiddle;
constexpr auto kEnd = SvgWriter::Anchor::kEnd;

constexpr int64_t kMaxMeshExtent = 10, kMaxPlanes = 4, kMeshCell = 30;
constexpr size_t kMaxTableLines = 48;
constexpr int64_t kBarWidth = 120, kSwatch = 10, kColumnGap = 16;
constexpr int64_t kHeatSide = 400, kLeastHeatCell = 6, kMostHeatCell = 56;
constexpr int64_t kFewBlocks = 10;  // up to so many blocks, cells have room for numbers

/// "980", "1.5k", "12M": in at most four characters.
std::string brief(int64_t n_bytes) {
  constexpr std::array<const char*, 6> kUnits = {"", "k", "M", "G", "T", "P"};
  auto value = static_cast<double>(n_bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return unit > 0 && value < 9.95 ? fmt::format("{:.1f}{}", value, kUnits[unit])
                                  : fmt::format("{:.0f}{}", value, kUnits[unit]);
}

/// One plane of a mesh.
SvgBlock svg_of_plane(const MeshPlane& plane) {
  SvgWriter out;
  if (plane.ranks.empty()) {
    out.text(0, kLineHeight, plane.heading, kFaint);
    return out.take(text_width(plane.heading), kLineHeight);
  }
  int64_t side = kMeshCell;
  for (const auto& row : plane.ranks)
    for (const int64_t rank : row) side = std::max(side, text_width(fmt::format("{}", rank)) + 8);
  const int64_t top = (plane.heading.empty() ? 0 : kLineHeight) + (plane.column_axis.empty() ? 0 : 2 * kLineHeight);
  int64_t left = 0;
  if (!plane.row_axis.empty()) {
    left = text_width(fmt::format("{} {}", plane.row_axis, plane.rows.back())) + 6;
    for (size_t r = 0; r < plane.rows.size(); ++r)
      out.text(left - 6, top + static_cast<int64_t>(r) * kMeshCell + kMeshCell / 2 + 4,
               plane.rows[r] == kLeftOut ? "⋮" : fmt::format("{} {}", plane.row_axis, plane.rows[r]), kFaint, kEnd);
  }
  if (!plane.heading.empty()) out.text(left, kLineHeight - 5, plane.heading);
  if (!plane.column_axis.empty()) {
    out.text(left, top - kLineHeight - 5, plane.column_axis, kFaint);
    for (size_t c = 0; c < plane.columns.size(); ++c)
      out.text(left + static_cast<int64_t>(c) * side + side / 2, top - 5,
               plane.columns[c] == kLeftOut ? "⋯" : fmt::format("{}", plane.columns[c]), kFaint, kMiddle);
  }
  for (size_t r = 0; r < plane.ranks.size(); ++r) {
    for (size_t c = 0; c < plane.ranks[r].size(); ++c) {
      const int64_t rank = plane.ranks[r][c], x = left + static_cast<int64_t>(c) * side;
      const int64_t y = top + static_cast<int64_t>(r) * kMeshCell;
      if (rank == kLeftOut) {
        out.rect(x, y, side, kMeshCell, R"( class="sw-gap" stroke-dasharray="3 3")");
        continue;
      }
      std::vector<std::string> places;
      if (!plane.heading.empty()) places.push_back(plane.heading);
      if (!plane.row_axis.empty()) places.push_back(fmt::format("{} {}", plane.row_axis, plane.rows[r]));
      if (!plane.column_axis.empty()) places.push_back(fmt::format("{} {}", plane.column_axis, plane.columns[c]));
      out.open_cell(rank, fmt::format("rank: {}\nplace: {}", rank, fmt::join(places, ", ")));
      out.rect(x, y, side, kMeshCell, fmt::format(" fill=\"{}\"", color_of(rank)));
      out.text(x + side / 2, y + kMeshCell / 2 + 4, fmt::format("{}", rank), R"( class="sw-name")", kMiddle);
      out.close_group();
    }
  }
  const int64_t width = left + static_cast<int64_t>(plane.columns.size()) * side;
  return out.take(std::max(width, left + text_width(plane.heading)),
                  top + static_cast<int64_t>(plane.rows.size()) * kMeshCell);
}

}  // namespace

SvgBlock svg_of(const MeshFigure& mesh) {
  SvgWriter out;
  const std::string words = caption(mesh);
  out.text(0, kLineHeight - 5, words);
  int64_t width = text_width(words), y = kLineHeight + 4;
  const std::vector<MeshPlane> planes = planes_of(mesh, kMaxMeshExtent, kMaxMeshExtent, kMaxPlanes);
  for (const MeshPlane& plane : planes) {
    const SvgBlock block = svg_of_plane(plane);
    out.place(block, 0, y);
    y += block.height + 10;
    width = std::max(width, block.width);
  }
  if (const std::string note = note_on_planes(mesh, planes); !note.empty()) {
    out.text(0, y + kLineHeight - 5, note, kFaint);
    y += kLineHeight + 4;
    width = std::max(width, text_width(note));
  }
  return out.take(width, y);
}

SvgBlock svg_of(const TableFigure& table) {
  const size_t n_lines = std::min(table.lines.size(), kMaxTableLines);
  bool has_bars = false, has_ranks = false;
  std::vector<int64_t> widths;
  for (const auto& head : table.heads) widths.push_back(text_width(head.text));
  for (size_t i = 0; i < n_lines; ++i) {
    const auto& line = table.lines[i];
    has_bars |= line.fraction >= 0;
    has_ranks |= line.rank >= 0;
    for (size_t column = 0; column < line.words.size(); ++column)
      widths[column] = std::max(widths[column], text_width(line.words[column]));
  }
  std::vector<int64_t> begins;
  int64_t right = has_ranks ? kSwatch + 6 : 0;
  for (const int64_t width : widths) {
    begins.push_back(right);
    right += width + kColumnGap;
  }
  SvgWriter out;
  const auto write = [&](size_t column, int64_t y, const std::string& word, std::string_view attributes) {
    const bool is_number = table.heads[column].is_number;
    if (!word.empty())
      out.text(begins[column] + (is_number ? widths[column] : 0), y, word, attributes,
               is_number ? kEnd : SvgWriter::Anchor::kStart);
  };
  int64_t y = 0;
  if (n_lines > 0) {
    y += kLineHeight;
    for (size_t column = 0; column < table.heads.size(); ++column)
      write(column, y - 5, table.heads[column].text, R"( class="sw-faint sw-head")");
  }
  for (size_t i = 0; i < n_lines; ++i) {
    const auto& line = table.lines[i];
    y += kLineHeight;
    if (line.words.empty()) {
      out.text(begins.size() > 1 ? begins[1] : 0, y - 5, line.note, kFaint);
      continue;
    }
    if (line.rank >= 0) {
      out.open_cell(line.rank);
      out.rect(0, y - kSwatch - 4, kSwatch, kSwatch, fmt::format(" fill=\"{}\"", color_of(line.rank)));
      out.close_group();
    }
    for (size_t column = 0; column < line.words.size(); ++column)
      write(column, y - 5, line.words[column], R"( class="sw-ink")");
    if (line.fraction >= 0)
      out.rect(right, y - 12, static_cast<int64_t>(std::lround(line.fraction * kBarWidth)), 8, R"( class="sw-bar")");
  }
  int64_t width = right + (has_bars ? kBarWidth : 0);
  std::vector<std::string> notes = table.notes;
  if (n_lines < table.lines.size())
    notes.insert(notes.begin(), fmt::format("... {} more lines", table.lines.size() - n_lines));
  for (const std::string& note : notes) {
    y += kLineHeight;
    out.text(0, y - 5, note, kFaint);
    width = std::max(width, text_width(note));
  }
  return out.take(width, y + 4);
}

SvgBlock svg_of(const TrafficFigure& traffic) {
  const TrafficMatrix& matrix = traffic.matrix;
  SvgWriter out;
  if (matrix.total() == 0) {
    out.text(0, kLineHeight - 5, "nothing is sent", kFaint);
    return out.take(text_width("nothing is sent"), kLineHeight);
  }
  const auto n = static_cast<int64_t>(matrix.blocks.size());
  const int64_t side = std::clamp(kHeatSide / n, kLeastHeatCell, kMostHeatCell);
  const int64_t most = *std::max_element(matrix.bytes.begin(), matrix.bytes.end());
  std::vector<std::string> names;
  int64_t longest = 0;
  for (const auto& block : matrix.blocks) {
    names.push_back(rank_list(block));
    longest = std::max(longest, text_width(names.back()));
  }
  const int64_t left = std::max(longest, text_width("from")) + 8, top = 2 * kLineHeight;
  out.text(left - 6, top - 6, "from", kFaint, kEnd);
  out.text(left, kLineHeight - 5, "to", kFaint);
  int64_t free_x = 0, free_y = 0;  // where the next name has room
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i * side, half = text_width(names[i]) / 2;
    if (at + side / 2 - half >= free_x) {
      out.text(left + at + side / 2, top - 6, names[i], kFaint, kMiddle);
      free_x = at + side / 2 + half + 6;
    }
    if (at < free_y) continue;
    out.text(left - 6, top + at + side / 2 + 4, names[i], kFaint, kEnd);
    free_y = at + 14;
  }
  for (int64_t from = 0; from < n; ++from) {
    for (int64_t to = 0; to < n; ++to) {
      const int64_t n_bytes = matrix.at(from, to), x = left + to * side, y = top + from * side;
      if (n_bytes == 0) continue;
      const auto opacity = static_cast<int64_t>(
          std::lround(12 + 88 * std::sqrt(static_cast<double>(n_bytes) / static_cast<double>(most))));
      out.open_group(fmt::format(" class=\"sw-link\" data-from=\"{}\" data-to=\"{}\"", rank_runs(matrix.blocks[from]),
                                 rank_runs(matrix.blocks[to])),
                     fmt::format("from: {}\nto: {}\nbytes: {}", rank_words(matrix.blocks[from]),
                                 rank_words(matrix.blocks[to]), with_commas(n_bytes)));
      out.rect(x, y, side, side,
               fmt::format(" class=\"sw-heat\" fill-opacity=\"{}.{:02}\"", opacity / 100, opacity % 100));
      if (n <= kFewBlocks)
        out.text(x + side / 2, y + side / 2 + 4, brief(n_bytes),
                 opacity > 60 ? R"( class="sw-on-heat")" : R"( class="sw-ink")", kMiddle);
      out.close_group();
    }
  }
  out.rect(left, top, n * side, n * side, R"( class="sw-frame" fill="none")");
  const std::string note = fmt::format("{} bytes in all, at most {} from {} to another", with_commas(matrix.total()),
                                       with_commas(most), n == matrix.n_ranks ? "one rank" : "one block of ranks");
  out.text(0, top + n * side + kLineHeight, note, kFaint);
  return out.take(std::max(left + n * side, text_width(note)), top + n * side + kLineHeight + 6);
}

}  // namespace shardwise::detail
