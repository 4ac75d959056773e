#include "pictures/picture.h"

#include "pictures/mesh_figure.h"
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
  TensorFigure tensor = tensor_figure(layout, element_bytes, dim_names);
  TableFigure shares = detail::rank_table(tensor);
  return {"",
          {{"", false, std::move(tensor)},
           {"", true, detail::mesh_figure(layout.grid(), dim_names)},
           {"", false, std::move(shares)}},
          {}};
}

Picture picture_of(const RankGrid& grid, const std::vector<std::string>& dim_names) {
  check(grid);
  return {"", {{"", false, detail::mesh_figure(grid, dim_names)}}, {}};
}

Picture picture_of(const LocalShards& shards, int64_t element_bytes) {
  TensorFigure tensor = tensor_figure(shards, element_bytes);
  TableFigure lines = detail::rank_table(tensor);
  return {"", {{"", false, std::move(tensor)}, {"", false, std::move(lines)}}, {}};
}

std::string draw(const Picture& picture, const PictureOptions& options) {
  return format_named(options.format).draw(picture, options);
}

std::string picture(const Layout& layout, const PictureOptions& options) {
  format_named(options.format);
  return draw(picture_of(layout, options.element_bytes), options);
}

}  // namespace shardwise
