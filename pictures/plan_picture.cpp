#include "pictures/mesh_figure.h"
#include "pictures/picture.h"
#include "pictures/rank_table.h"
#include "plans/traffic.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

using detail::with_commas;

constexpr int64_t kMaxBlocks = 64;  // of ranks in a heat map
constexpr int64_t kMovesListed = 24;

/// " along dp, tp": the mesh dims in which sender and receiver of the step's messages differ; "" if a message leaves the mesh.
std::string dims_crossed(const Plan& plan, const MeshNames& names, const Step& step, const TrafficMatrix& matrix) {
  const bool is_at_source = step.from.grid() == plan.source.grid();
  std::vector<std::string> dims;
  if (step.mesh_dim >= 0) {
    dims.push_back(detail::mesh_dim_words(is_at_source ? names.source : names.destination, step.mesh_dim));
  } else if (is_at_source && step.to.grid() == step.from.grid()) {
    for (size_t mesh_dim = 0; mesh_dim < matrix.crosses.size(); ++mesh_dim)
      if (matrix.crosses[mesh_dim]) dims.push_back(detail::mesh_dim_words(names.source, mesh_dim));
  }
  return dims.empty() ? "" : fmt::format(" along {}", fmt::join(dims, ", "));
}

/// "step 2 of 3: reduce-scatter along mesh dim 1, 1,024 bytes".
std::string heading_of(const Plan& plan, const MeshNames& names, size_t number, const TrafficMatrix& matrix) {
  const Step& step = plan.steps[number];
  std::string text = fmt::format("step {} of {}: {}", number + 1, plan.steps.size(), name_of(step));
  text += dims_crossed(plan, names, step, matrix);
  if (step.n_rounds > 1) text += fmt::format(" in {} rounds", step.n_rounds);
  return text + fmt::format(", {} bytes", with_commas(matrix.total()));
}

/// A note that numbers are scaled up from a sample of ranks; "" if all ranks were counted.
std::string sampling_of(const TrafficMatrix& matrix) {
  if (matrix.total() == 0 || matrix.n_senders_asked >= matrix.n_ranks) return "";
  return fmt::format("counted on {} ranks, evenly spaced, and scaled up to {}", with_commas(matrix.n_senders_asked),
                     with_commas(matrix.n_ranks));
}

std::string with_sampling(std::string heading, const TrafficMatrix& matrix) {
  const std::string sampling = sampling_of(matrix);
  return sampling.empty() ? heading : heading + ", " + sampling;
}

/// Bytes per link: by the first mesh dim in which sender and receiver differ.
TableFigure links_table(const TrafficMatrix& matrix, const Plan& plan, const MeshNames& names) {
  TableFigure table{{{"link"}, {"bytes", true}, {"share", true}}, {}, {}};
  const int64_t total = matrix.total();
  int64_t most = matrix.bytes_across;
  for (const int64_t n_bytes : matrix.bytes_along) most = std::max(most, n_bytes);
  const auto add = [&](std::string link, int64_t n_bytes) {
    TableFigure::Line& line = table.lines.emplace_back();
    line.words = {std::move(link), with_commas(n_bytes), detail::share_of(n_bytes, total)};
    line.fraction = most > 0 ? static_cast<double>(n_bytes) / static_cast<double>(most) : 0;
  };
  for (size_t mesh_dim = 0; mesh_dim < matrix.bytes_along.size(); ++mesh_dim)
    add(fmt::format("along {}, of {}", detail::mesh_dim_words(names.source, mesh_dim),
                    plan.source.grid().shape[mesh_dim]),
        matrix.bytes_along[mesh_dim]);
  if (matrix.bytes_across > 0) add("between the meshes", matrix.bytes_across);
  if (std::string sampling = sampling_of(matrix); !sampling.empty()) table.notes.push_back(std::move(sampling));
  return table;
}

TableFigure moves_table(const Plan& plan) {
  TableFigure table{{{"step"}, {"from", true}, {"to", true}, {"box"}, {"bytes", true}}, {}, {}};
  for (const Step& step : plan.steps) {
    for (const SentBox& sent : sent_boxes(plan, step, kMovesListed + 1)) {
      if (static_cast<int64_t>(table.lines.size()) == kMovesListed) {
        table.notes.emplace_back("... and more");
        return table;
      }
      TableFigure::Line& line = table.lines.emplace_back();
      line.words = {name_of(step), fmt::format("{}", sent.from), fmt::format("{}", sent.to), to_string(sent.box),
                    with_commas(sent.n_bytes)};
      line.rank = sent.from;
    }
  }
  return table;
}

}  // namespace

Picture picture_of(const Plan& plan, const MeshNames& names) {
  MeshFigure mesh = detail::mesh_figure(plan.source.grid(), names.source);
  detail::mesh_figure(plan.destination.grid(), names.destination);  // throws for names that do not fit
  Picture picture{to_string(plan), {}, {}};
  picture.figures.push_back({"before", false, tensor_figure(plan.source, plan.element_bytes, names.source)});
  picture.figures.push_back({"", true, std::move(mesh)});
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    TrafficMatrix matrix = traffic_matrix(plan, step, kMaxBlocks);
    const bool is_silent = matrix.total() == 0, is_at_source = step.to.grid() == plan.source.grid();
    picture.figures.push_back(
        {with_sampling(heading_of(plan, names, i, matrix), matrix), false,
         tensor_figure(step.to, plan.element_bytes, is_at_source ? names.source : names.destination)});
    if (!is_silent) picture.figures.push_back({"", true, TrafficFigure{std::move(matrix)}});
  }
  return picture;
}

Picture difference_of(const Plan& plan, const MeshNames& names) {
  MeshFigure from = detail::mesh_figure(plan.source.grid(), names.source);
  MeshFigure to = detail::mesh_figure(plan.destination.grid(), names.destination);
  TrafficMatrix matrix = traffic_matrix(plan, kMaxBlocks);
  TableFigure links = links_table(matrix, plan, names);
  const bool is_silent = matrix.total() == 0;
  Picture picture{to_string(plan), {}, {}};
  picture.figures.push_back({"from", false, tensor_figure(plan.source, plan.element_bytes, names.source)});
  picture.figures.push_back({"to", true, tensor_figure(plan.destination, plan.element_bytes, names.destination)});
  std::string heading = with_sampling("bytes from ranks to ranks", matrix);
  picture.figures.push_back({std::move(heading), false, TrafficFigure{std::move(matrix)}});
  picture.figures.push_back({"", true, std::move(from)});
  if (!(plan.source.grid() == plan.destination.grid())) picture.figures.push_back({"", true, std::move(to)});
  if (is_silent) return picture;
  picture.figures.push_back({"bytes per link", false, std::move(links)});
  picture.figures.push_back({"what moves", false, moves_table(plan)});
  return picture;
}

}  // namespace shardwise
