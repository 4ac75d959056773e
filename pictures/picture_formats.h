// pictures/picture_formats.h: the formats in which pictures are drawn. A new one is a file with its function, and a line here.
#pragma once

#include "pictures/picture.h"

#include <array>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// Characters: the layout in a line, the grid, a line per rank, and how evenly the bytes lie.
std::string draw_text(const Picture& picture, const PictureOptions& options);

struct PictureFormat {
  std::string_view name;
  std::string (*draw)(const Picture& picture, const PictureOptions& options);
};

inline constexpr std::array kPictureFormats = {PictureFormat{"text", &draw_text}};

}  // namespace shardwise::detail
