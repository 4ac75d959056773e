// pictures/mesh_figure.h: the text and the order in which every format shows a mesh.
#pragma once

#include "pictures/picture.h"

#include <string>
#include <vector>

namespace shardwise::detail {

/// Throws: c10::ValueError unless there are no names or one per dim of the grid.
MeshFigure mesh_figure(const RankGrid& grid, const std::vector<std::string>& dim_names);

/// "mesh of 2x3 ranks (dp=2, tp=3)", without the names if there are none.
std::string caption(const MeshFigure& mesh);

/// "(dp=2, tp=3)".
std::string named_shape(const RankGrid& grid, const std::vector<std::string>& dim_names);

/// "tp", or "mesh dim 1" without names.
std::string mesh_dim_words(const std::vector<std::string>& dim_names, size_t mesh_dim);

inline constexpr int64_t kLeftOut = -1;

/// The last two dims of a mesh, at one index of the leading dims: a row of ranks per index of the last dim but one.
struct MeshPlane {
  std::string heading;                      // "dp 0, cp 1" for the leading dims, or ""
  std::string row_axis, column_axis;        // "tp"; empty for a dim that the mesh lacks
  std::vector<int64_t> rows, columns;       // indices along the axes; kLeftOut stands for the middle
  std::vector<std::vector<int64_t>> ranks;  // by row; kLeftOut where the row or column is
};

/// "12 of 4,096 ranks are shown", or "" if all are.
std::string note_on_planes(const MeshFigure& mesh, const std::vector<MeshPlane>& planes);

/// All planes, row-major. If there are too many rows, columns or planes, the middle ones are left out; a plane without rows stands for the planes
/// left out.
std::vector<MeshPlane> planes_of(const MeshFigure& mesh, int64_t max_rows, int64_t max_columns, int64_t max_planes);

}  // namespace shardwise::detail
