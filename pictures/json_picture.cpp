#include "pictures/picture_formats.h"

#include <nlohmann/json.hpp>

namespace shardwise::detail {
namespace {

using nlohmann::json;

json to_json(const RankGrid& grid, const std::vector<std::string>& dim_names) {
  return {{"shape", std::vector<int64_t>(grid.shape.begin(), grid.shape.end())},
          {"ranks", grid.ranks},
          {"dim_names", dim_names}};
}

json to_json(const Dims& numbers) { return std::vector<int64_t>(numbers.begin(), numbers.end()); }

json to_json(const TensorFigure& figure) {
  json placements = json::array(), ranks = json::array();
  if (figure.layout)
    for (const Placement& placement : figure.layout->placements()) placements.push_back(to_string(placement));
  for (const RankShare& share : figure.shares) {
    json boxes = json::array();
    for (const Box& box : share.boxes)
      boxes.push_back({{"offsets", to_json(box.offsets)}, {"sizes", to_json(box.sizes)}});
    ranks.push_back({{"rank", share.rank}, {"bytes", share.n_bytes}, {"boxes", std::move(boxes)}});
  }
  json tensor = {{"kind", "tensor"}, {"caption", caption(figure)}, {"element_bytes", figure.element_bytes}};
  if (figure.layout) {
    tensor["shape"] = to_json(figure.sizes);
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

}  // namespace

std::string draw_json(const Picture& picture, const PictureOptions& /*options*/) {
  json figures = json::array(), details = json::array();
  for (const Figure& figure : picture.figures) {
    json& values =
        figures.emplace_back(std::visit([](const auto& content) { return to_json(content); }, figure.content));
    values["heading"] = figure.heading;
  }
  for (const TensorFigure& figure : picture.details) details.push_back(to_json(figure));
  const json values = {{"title", picture.title}, {"figures", std::move(figures)}, {"details", std::move(details)}};
  return values.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace shardwise::detail
