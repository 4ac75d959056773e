#include "pictures/grid_drawing.h"
#include "pictures/picture_formats.h"
#include "pictures/rank_table.h"
#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise::detail {

namespace {

constexpr const char* kEllipsis = "...";

/// The layout, its ranks and bytes in one line; placements of many sizes are shortened to the width.
std::string title(const Picture& picture, int64_t max_width) {
  const Layout& layout = picture.layout;
  const int64_t n_bytes = Box::whole(layout.sizes()).numel() * picture.element_bytes;
  const std::string head = fmt::format("[{}] as ", fmt::join(layout.sizes(), ", "));
  const std::string tail = fmt::format(" on {} ({}), {} bytes", to_string(layout.grid()),
                                       rank_list(layout.grid().ranks), with_commas(n_bytes));
  std::string placements = shardwise::to_string(layout.placements());
  if (layout.in_pieces())  // "EnumerableShard" of "[EnumerableShard([...])]"
    placements = fmt::format("{} of {} pieces", placements.substr(1, placements.find('(') - 1), layout.pieces().size());
  const auto room = std::max<int64_t>(20, max_width - static_cast<int64_t>(head.size() + tail.size()));
  if (static_cast<int64_t>(placements.size()) > room) placements = placements.substr(0, room - 3) + kEllipsis;
  return head + placements + tail + "\n";
}

}  // namespace

std::string draw_text(const Picture& picture, const PictureOptions& options) {
  std::string text = title(picture, options.max_width);
  if (picture.cells.empty()) {
    text += "  no elements, nothing to draw\n";
  } else {
    const GridDrawing drawing(picture, options.max_width);
    text += drawing.draw(options.color) + drawing.notes();
  }
  return text + rank_table(picture, options.color);
}

}  // namespace shardwise::detail
