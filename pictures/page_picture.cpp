#include "pictures/picture_formats.h"
#include "pictures/svg_figures.h"
#include "text/rank_names.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shardwise::detail {
namespace {

using nlohmann::json;

json page_of(const TensorFigure& figure) {
  json slices = json::array();
  for (const Slice& slice : figure.slices) {
    std::string where = figure.sizes.size() > 2 ? heading(slice, figure.sizes) : "";
    if (slice.cells.empty())
      slices.push_back(
          {{"heading", fmt::format("{} left out: {} ranges of indices", where, slice.n_left_out)}, {"svg", ""}});
    else
      slices.push_back({{"heading", std::move(where)}, {"svg", svg_document(svg_of(figure, slice), "")}});
  }
  return {
      {"kind", "tensor"}, {"caption", caption(figure)}, {"note", note_on_terms(figure)}, {"slices", std::move(slices)}};
}

json page_of(const MeshFigure& mesh) { return {{"kind", "mesh"}, {"svg", svg_document(svg_of(mesh), "")}}; }

json page_of(const TableFigure& table) {
  json heads = json::array(), lines = json::array();
  for (const auto& head : table.heads) heads.push_back({{"text", head.text}, {"number", head.is_number}});
  for (const auto& line : table.lines)
    lines.push_back({{"words", line.words},
                     {"rank", line.rank},
                     {"color", line.rank < 0 ? "" : color_of(line.rank)},
                     {"fraction", line.fraction},
                     {"note", line.note},
                     {"detail", line.detail}});
  return {{"kind", "table"}, {"heads", std::move(heads)}, {"lines", std::move(lines)}, {"notes", table.notes}};
}

json page_of(const TrafficFigure& traffic) { return {{"kind", "traffic"}, {"svg", svg_document(svg_of(traffic), "")}}; }

}  // namespace

std::string draw_page(const Picture& picture, const PictureOptions& /*options*/) {
  json figures = json::array(), details = json::array();
  for (const Figure& figure : picture.figures) {
    json& each = figures.emplace_back(std::visit([](const auto& content) { return page_of(content); }, figure.content));
    each["heading"] = figure.heading;
    each["beside"] = figure.is_beside;
  }
  for (const TensorFigure& figure : picture.details) details.push_back(page_of(figure));
  const json page = {{"title", picture.title}, {"figures", std::move(figures)}, {"details", std::move(details)}};
  return page.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace shardwise::detail
