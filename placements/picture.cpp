#include "placements/picture.h"

#include "placements/grid_drawing.h"
#include "placements/rank_names.h"
#include "placements/rank_table.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace shardwise {

namespace {

constexpr const char* kCut = "...";

Interval range_of(const Box& box, int64_t dim) { return dim < 0 ? Interval{0, 1} : box.interval(dim); }

std::vector<detail::Cell> cells_of(const Layout& layout) {
  std::map<std::vector<int64_t>, size_t> at_offsets;  // distinct boxes with elements are disjoint
  std::vector<detail::Cell> cells;
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

/// "sum" or "sum, max": the reductions of the Partial mesh dims; empty where there are none.
std::string reductions(const Layout& layout) {
  std::vector<std::string_view> words;
  for (const Placement& placement : layout.placements()) {
    if (!placement.is_partial()) continue;
    const auto word = to_string(placement.reduce());
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

/// The layout, its ranks and bytes in one line; placements of many sizes are cut to the width.
std::string title(const Layout& layout, const PictureOptions& options) {
  const int64_t n_bytes = Box::whole(layout.sizes()).numel() * options.element_bytes;
  const std::string head = fmt::format("[{}] as ", fmt::join(layout.sizes(), ", "));
  const std::string tail = fmt::format(" on {} ({}), {} bytes", to_string(layout.grid()),
                                       detail::rank_list(layout.grid().ranks), detail::with_commas(n_bytes));
  std::string placements = to_string(layout.placements());
  if (layout.in_pieces()) placements = fmt::format("EnumerableShard of {} pieces", layout.pieces().size());
  const auto room = std::max<int64_t>(20, options.max_width - static_cast<int64_t>(head.size() + tail.size()));
  if (static_cast<int64_t>(placements.size()) > room) placements = placements.substr(0, room - 3) + kCut;
  return head + placements + tail + "\n";
}

}  // namespace

std::string picture(const Layout& layout, const PictureOptions& options) {
  TORCH_CHECK_VALUE(layout.dim() <= 2, "[picture] a tensor of ", layout.dim(), " dims ", layout.sizes(),
                    " cannot be drawn: a picture has at most 2 dims. Draw a slice of it.");
  std::string text = title(layout, options);
  if (auto cells = cells_of(layout); cells.empty()) {
    text += "  no elements, nothing to draw\n";
  } else {
    const detail::GridDrawing grid_drawing(std::move(cells), {layout.dim(), reductions(layout), options.max_width});
    text += grid_drawing.draw(options.color) + grid_drawing.notes();
  }
  return text + detail::rank_table(layout, options.element_bytes, options.color);
}

}  // namespace shardwise
