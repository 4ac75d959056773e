// pictures/picture_formats.h: the formats in which pictures are drawn. A new format is a file with its function, and a row of kPictureFormats.
#pragma once

#include "pictures/picture.h"

#include <array>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// Text: the layout in a line, the grid, a line per rank, and the imbalance of bytes.
std::string draw_text(const Picture& picture, const PictureOptions& options);

/// One drawing for light and dark pages: the figures from top to bottom, the mesh beside the tensor. Only the first slices of a tensor are drawn.
std::string draw_svg(const Picture& picture, const PictureOptions& options);

/// The values in JSON, for other programs. docs/pictures.md describes them.
std::string draw_json(const Picture& picture, const PictureOptions& options);

/// The data of an interactive HTML page, in JSON: figures with all their slices, each drawn in SVG for a page with page_style(), and tables.
///
/// {"title", "figures": [{"kind": "tensor" | "mesh" | "table" | "traffic", "heading", "beside", ...}],
///  "details": [tensor figures]}; tensor: "caption", "note", "slices": [{"heading", "svg"}]; mesh and traffic: "svg"; table: "heads":
/// [{"text", "number"}], "lines": [{"words", "rank", "color", "fraction", "note", "detail"}], "notes".
std::string draw_page(const Picture& picture, const PictureOptions& options);

struct PictureFormat {
  std::string_view name;
  std::string_view suffix;  // of its files; "" if it has none: the Python package makes files from the data of a page
  std::string (*draw)(const Picture& picture, const PictureOptions& options);
};

/// C++, Python and the command line take the names and suffixes of formats from here.
inline constexpr std::array kPictureFormats = {
    PictureFormat{"text", ".txt", &draw_text},
    PictureFormat{"svg", ".svg", &draw_svg},
    PictureFormat{"json", ".json", &draw_json},
    PictureFormat{"page", "", &draw_page},
};

}  // namespace shardwise::detail
