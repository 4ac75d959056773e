// pictures/mesh_figure.h: the words and the order in which every format shows a mesh.
#pragma once

#include "pictures/picture.h"

#include <string>
#include <vector>

namespace shardwise::detail {

/// Throws: c10::ValueError for another number of names than the grid has dims, but none.
MeshFigure mesh_figure(const RankGrid& grid, const std::vector<std::string>& dim_names);

/// "mesh of 2x3 ranks (dp=2, tp=3)", without the names where there are none.
std::string caption(const MeshFigure& mesh);

/// "(dp=2, tp=3)".
std::string named_shape(const RankGrid& grid, const std::vector<std::string>& dim_names);

/// "tp", or "mesh dim 1" without names.
std::string mesh_dim_words(const std::vector<std::string>& dim_names, size_t mesh_dim);

inline constexpr int64_t kLeftOut = -1;

/// The last two dims of a mesh at one index of the others: a row of ranks per index of the last dim but one.
struct MeshPlane {
  std::string heading;                      // "dp 0, cp 1" of the leading dims, or none
  std::string row_axis, column_axis;        // "tp"; empty for a dim that the mesh lacks
  std::vector<int64_t> rows, columns;       // indices along the axes; kLeftOut stands for the middle
  std::vector<std::vector<int64_t>> ranks;  // by row; kLeftOut where row or column is
};

/// All planes, row-major; of many rows, columns and planes the middle is left out: a plane without rows stands for it.
std::vector<MeshPlane> planes_of(const MeshFigure& mesh, int64_t max_rows, int64_t max_columns, int64_t max_planes);

}  // namespace shardwise::detail
