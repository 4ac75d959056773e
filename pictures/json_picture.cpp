#include "pictures/picture_formats.h"
#include "pictures/svg_figures.h"
#include "text/rank_names.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shardwise::detail {
namespace {

using nlohmann::json;

json to_json(const RankGrid& grid, const std::vector<std::string>& dim_names) {
  return {{"shape", grid.shape}, {"ranks", grid.ranks}, {"dim_names", dim_names}};
}

json to_json(const TensorFigure& figure) {
  json placements = json::array(), ranks = json::array();
  if (figure.layout)
    for (const Placement& placement : figure.layout->placements()) placements.push_back(to_string(placement));
  for (const RankShare& share : figure.shares) {
    json boxes = json::array();
    for (const Box& box : share.boxes) boxes.push_back({{"offsets", box.offsets}, {"sizes", box.sizes}});
    ranks.push_back({{"rank", share.rank}, {"bytes", share.n_bytes}, {"boxes", std::move(boxes)}});
  }
  json tensor = {{"kind", "tensor"}, {"caption", caption(figure)}, {"element_bytes", figure.element_bytes}};
  if (figure.layout) {
    tensor["shape"] = figure.sizes;
    tensor["bytes"] = bytes_of_tensor(figure);
    tensor["mesh"] = to_json(figure.layout->grid(), figure.dim_names);
    tensor["placements"] = std::move(placements);
  }
  tensor["ranks"] = std::move(ranks);
  return tensor;
}

json to_json(const MeshFigure& mesh) {
  json values = to_json(mesh.grid, mesh.dim_names);
  values["kind"] = "mesh";
  return values;
}

json to_json(const TableFigure& table) {
  json heads = json::array(), lines = json::array(), notes = table.notes;
  for (const auto& head : table.heads) heads.push_back(head.text);
  for (const auto& line : table.lines) {
    if (line.words.empty()) {
      notes.push_back(line.note);
      continue;
    }
    json& values = lines.emplace_back(json{{"words", line.words}});
    if (line.rank >= 0) values["rank"] = line.rank;
    if (line.detail >= 0) values["detail"] = line.detail;
  }
  return {{"kind", "table"}, {"heads", std::move(heads)}, {"lines", std::move(lines)}, {"notes", std::move(notes)}};
}

json to_json(const TrafficFigure& traffic) {
  const TrafficMatrix& matrix = traffic.matrix;
  json bytes = json::array();
  for (size_t from = 0; from < matrix.blocks.size(); ++from) {
    json& row = bytes.emplace_back(json::array());
    for (size_t to = 0; to < matrix.blocks.size(); ++to) row.push_back(matrix.at(from, to));
  }
  return {{"kind", "traffic"},
          {"blocks", matrix.blocks},
          {"bytes", std::move(bytes)},
          {"bytes_along", matrix.bytes_along},
          {"bytes_across", matrix.bytes_across},
          {"senders_counted", matrix.n_senders_asked}};
}

// The same for pages: drawings in place of values.

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

/// `values` gives the values of a figure.
template <class Values>
std::string document_of(const Picture& picture, const Values& values) {
  json figures = json::array(), details = json::array();
  for (const Figure& figure : picture.figures) {
    json& each = figures.emplace_back(std::visit(values, figure.content));
    each["heading"] = figure.heading;
    if (figure.is_beside) each["beside"] = true;
  }
  for (const TensorFigure& figure : picture.details) details.push_back(values(figure));
  const json document = {{"title", picture.title}, {"figures", std::move(figures)}, {"details", std::move(details)}};
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string draw_json(const Picture& picture, const PictureOptions& /*options*/) {
  return document_of(picture, [](const auto& figure) { return to_json(figure); });
}

std::string draw_page(const Picture& picture, const PictureOptions& /*options*/) {
  return document_of(picture, [](const auto& figure) { return page_of(figure); });
}

}  // namespace shardwise::detail
