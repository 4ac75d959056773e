#include "pictures/picture.h"

#include "pictures/picture_formats.h"
#include "pictures/rank_table.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {

namespace {

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

Picture picture_of(const Layout& layout, int64_t element_bytes, const std::vector<std::string>& dim_names) {
  TensorFigure tensor = tensor_figure(layout, element_bytes);
  TableFigure shares = detail::rank_table(tensor);
  return {"",
          {{"", false, std::move(tensor)},
           {"", true, MeshFigure{layout.grid(), dim_names}},
           {"", false, std::move(shares)}},
          {}};
}

Picture picture_of(const RankGrid& grid, const std::vector<std::string>& dim_names) {
  check(grid);
  TORCH_CHECK_VALUE(dim_names.empty() || dim_names.size() == grid.shape.size(), "[picture] ", dim_names.size(),
                    " names for a mesh of ", grid.shape.size(), " dims: each dim has one. Give as many, or none.");
  return {"", {{"", false, MeshFigure{grid, dim_names}}}, {}};
}

std::string draw(const Picture& picture, const PictureOptions& options) {
  return format_named(options.format).draw(picture, options);
}

std::string picture(const Layout& layout, const PictureOptions& options) {
  format_named(options.format);
  return draw(picture_of(layout, options.element_bytes), options);
}

}  // namespace shardwise
