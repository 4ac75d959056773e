#include "pictures/mesh_figure.h"

#include "text/table.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise::detail {
namespace {

constexpr const char* kDots = "...";

std::string dim_word(const MeshFigure& mesh, size_t mesh_dim) {
  return mesh.dim_names.empty() ? fmt::format("dim {}", mesh_dim) : mesh.dim_names[mesh_dim];
}

/// The indices below `extent` that are shown; kLeftOut replaces those in the middle.
std::vector<int64_t> shown_indices(int64_t extent, int64_t limit) {
  const int64_t n_last = (limit - 1) / 2, n_first = limit - 1 - n_last;
  std::vector<int64_t> shown;
  for (int64_t i = 0; i < extent; ++i) {
    if (extent > limit && i == n_first) {
      shown.push_back(kLeftOut);
      i = extent - n_last;
    }
    shown.push_back(i);
  }
  return shown;
}

std::string axis_of(const MeshFigure& mesh, int64_t mesh_dim) { return mesh_dim < 0 ? "" : dim_word(mesh, mesh_dim); }

std::string heading_of(const MeshFigure& mesh, int64_t plane, int64_t n_leading) {
  std::vector<std::string> words(std::max<int64_t>(0, n_leading));
  for (int64_t mesh_dim = n_leading; mesh_dim-- > 0; plane /= mesh.grid.shape[mesh_dim])
    words[mesh_dim] = fmt::format("{} {}", dim_word(mesh, mesh_dim), plane % mesh.grid.shape[mesh_dim]);
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

MeshFigure mesh_figure(const RankGrid& grid, const std::vector<std::string>& dim_names) {
  TORCH_CHECK_VALUE(dim_names.empty() || dim_names.size() == grid.shape.size(), "[picture] ", dim_names.size(),
                    " names for a mesh of ", grid.shape.size(),
                    " dims: each dim needs one name. Give one name per dim, or none.");
  return {grid, dim_names};
}

std::string mesh_dim_words(const std::vector<std::string>& dim_names, size_t mesh_dim) {
  return dim_names.empty() ? fmt::format("mesh dim {}", mesh_dim) : dim_names[mesh_dim];
}

std::string named_shape(const RankGrid& grid, const std::vector<std::string>& dim_names) {
  std::vector<std::string> words;
  for (size_t mesh_dim = 0; mesh_dim < dim_names.size(); ++mesh_dim)
    words.push_back(fmt::format("{}={}", dim_names[mesh_dim], grid.shape[mesh_dim]));
  return fmt::format("({})", fmt::join(words, ", "));
}

std::string caption(const MeshFigure& mesh) {
  return fmt::format("mesh of {}{}", to_string(mesh.grid),
                     mesh.dim_names.empty() ? "" : " " + named_shape(mesh.grid, mesh.dim_names));
}

std::string note_on_planes(const MeshFigure& mesh, const std::vector<MeshPlane>& planes) {
  int64_t n_shown = 0;
  for (const MeshPlane& plane : planes)
    for (const auto& row : plane.ranks)
      n_shown += std::ranges::count_if(row, [](int64_t rank) { return rank != kLeftOut; });
  const int64_t n_ranks = mesh.grid.size();
  return n_shown == n_ranks ? "" : fmt::format("{} of {} ranks are shown", with_commas(n_shown), with_commas(n_ranks));
}

std::vector<MeshPlane> planes_of(const MeshFigure& mesh, int64_t max_rows, int64_t max_columns, int64_t max_planes) {
  const auto n_dims = static_cast<int64_t>(mesh.grid.shape.size());
  const int64_t n_columns = n_dims < 1 ? 1 : mesh.grid.shape[n_dims - 1];
  const int64_t n_rows = n_dims < 2 ? 1 : mesh.grid.shape[n_dims - 2];
  const std::vector<int64_t> rows = shown_indices(n_rows, max_rows), columns = shown_indices(n_columns, max_columns);
  std::vector<MeshPlane> planes;
  for (const int64_t number : shown_indices(mesh.grid.size() / (n_rows * n_columns), max_planes)) {
    MeshPlane& plane = planes.emplace_back();
    plane.heading = number == kLeftOut ? kDots : heading_of(mesh, number, n_dims - 2);
    if (number == kLeftOut) continue;
    plane.row_axis = axis_of(mesh, n_dims - 2);
    plane.column_axis = axis_of(mesh, n_dims - 1);
    plane.rows = rows;
    plane.columns = columns;
    for (const int64_t row : rows) {
      auto& ranks = plane.ranks.emplace_back();
      for (const int64_t column : columns)
        ranks.push_back(row == kLeftOut || column == kLeftOut
                            ? kLeftOut
                            : mesh.grid.ranks[(number * n_rows + row) * n_columns + column]);
    }
  }
  return planes;
}

}  // namespace shardwise::detail
