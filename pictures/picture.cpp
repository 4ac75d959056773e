#include "pictures/picture.h"

#include "pictures/picture_formats.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

namespace shardwise {

namespace {

Interval range_of(const Box& box, int64_t dim) { return dim < 0 ? Interval{0, 1} : box.interval(dim); }

std::vector<PictureCell> cells_of(const Layout& layout) {
  std::map<std::vector<int64_t>, size_t> at_offsets;  // distinct boxes with elements are disjoint
  std::vector<PictureCell> cells;
  for (const int64_t rank : layout.grid().ranks) {
    for (const Box& box : layout.boxes(rank)) {
      if (box.empty()) continue;
      const auto [found, is_new] = at_offsets.try_emplace({box.offsets.begin(), box.offsets.end()}, cells.size());
      if (is_new) cells.push_back({range_of(box, layout.dim() - 2), range_of(box, layout.dim() - 1), {}});
      cells[found->second].ranks.push_back(rank);
    }
  }
  return cells;
}

/// The intervals between all begins and ends of the cells.
std::vector<Interval> segments_of(const std::vector<PictureCell>& cells, Interval PictureCell::* range) {
  std::set<int64_t> lines;
  for (const PictureCell& cell : cells) lines.insert({(cell.*range).begin, (cell.*range).end});
  std::vector<Interval> segments;
  for (auto end = lines.begin(); end != lines.end(); ++end)
    if (end != lines.begin()) segments.push_back({*std::prev(end), *end});
  return segments;
}

std::string reductions_of(const Layout& layout) {
  std::vector<std::string_view> words;
  for (const Placement& placement : layout.placements()) {
    if (!placement.is_partial()) continue;
    const auto word = to_string(placement.reduce());
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::vector<RankShare> shares_of(const Layout& layout, int64_t element_bytes) {
  std::vector<RankShare> shares;
  for (const int64_t rank : layout.grid().ranks) {
    shares.push_back({rank, layout.boxes(rank), 0});
    for (const Box& box : shares.back().boxes) shares.back().n_bytes += box.numel() * element_bytes;
  }
  return shares;
}

const detail::PictureFormat& format_named(std::string_view name) {
  const auto& formats = detail::kPictureFormats;
  const auto* found = std::find_if(formats.begin(), formats.end(), [&](const auto& each) { return each.name == name; });
  std::vector<std::string_view> names;
  for (const auto& each : formats) names.push_back(each.name);
  TORCH_CHECK_VALUE(found != formats.end(), "[picture] format '", name,
                    "' is unknown: a picture is drawn in one of the formats it knows. Use one of ",
                    fmt::format("{}", fmt::join(names, ", ")), ".");
  return *found;
}

}  // namespace

Picture picture_of(const Layout& layout, int64_t element_bytes) {
  TORCH_CHECK_VALUE(layout.dim() <= 2, "[picture] a tensor of ", layout.dim(), " dims ", layout.sizes(),
                    " cannot be drawn: a picture has at most 2 dims. Draw a slice of it.");
  Picture picture{
      layout, element_bytes, cells_of(layout), {}, {}, reductions_of(layout), shares_of(layout, element_bytes)};
  picture.rows = segments_of(picture.cells, &PictureCell::rows);
  picture.columns = segments_of(picture.cells, &PictureCell::columns);
  return picture;
}

std::string picture(const Layout& layout, const PictureOptions& options) {
  const auto& format = format_named(options.format);
  return format.draw(picture_of(layout, options.element_bytes), options);
}

}  // namespace shardwise
