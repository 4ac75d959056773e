// pictures/tensor_figure.h: a layout, or the shards of one rank, as slices of 2 dims: the ranks that hold each range of rows and columns, per index
// range of the leading dims.
//
// [4, 6, 5] with dim 0 sharded over 2 ranks: two slices, [0:2] and [2:4], of one cell each.
#pragma once

#include "placements/layout.h"

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// A box that ranks hold, as rows and columns. If the tensor lacks one of the two dims, that is [0, 1).
struct FigureCell {
  Interval rows, columns;  // of the last two dims; not empty
  Box box;
  std::vector<int64_t> ranks;  // in the order of the grid
  std::vector<std::vector<int64_t>>
      terms;  // for a Partial tensor: the ranks that hold each term of the sum; else empty
};

/// The last two dims of a tensor, for all indices of the leading dims with the same boxes.
struct Slice {
  std::vector<Box> where;               // ranges of the leading dims; one box without intervals if there are none
  std::vector<FigureCell> cells;        // disjoint
  std::vector<Interval> rows, columns;  // between the grid lines, ascending; cells begin and end at lines
  int64_t n_left_out = 0;               // above 0: stands for that many left out ranges of a leading dim, without cells
};

/// The boxes and bytes of one rank.
struct RankShare {
  int64_t rank = 0;
  std::vector<Box> boxes;
  int64_t n_bytes = 0;
};

/// One rank's boxes of a tensor if other ranks are unknown: the pieces of a LocalShardsWrapper.
struct LocalShards {
  int64_t rank = 0;
  std::vector<Box> boxes;  // disjoint, of one dimensionality
};

struct TensorFigure {
  std::optional<Layout> layout;        // nullopt for LocalShards
  std::vector<std::string> dim_names;  // of the mesh dims, or none
  Dims sizes;                          // of the tensor; without a layout, the extent of the shards
  int64_t element_bytes = 0;
  std::vector<Slice> slices;      // by ascending indices; none for a tensor without elements
  std::string reductions;         // "sum", or "sum of max" for several Partial mesh dims; "" if there are none
  int64_t n_terms = 1;            // number of terms that the reductions combine
  std::vector<RankShare> shares;  // of every rank, in the order of the grid
};

/// A pure function of the layout, equal on every rank and on non-members. If a leading dim has many ranges, the middle ones are left out, so that
/// there are at most about `max_slices` slices. `dim_names`: one per mesh dim, or none. Cost: O(boxes of all ranks * slices).
TensorFigure tensor_figure(const Layout& layout, int64_t element_bytes, const std::vector<std::string>& dim_names = {},
                           int64_t max_slices = 256);

/// The same for one rank's shards, at their true coordinates, without cells where the rank holds nothing.
TensorFigure tensor_figure(const LocalShards& shards, int64_t element_bytes, int64_t max_slices = 256);

/// Bytes of the whole tensor; 0 if unknown.
int64_t bytes_of_tensor(const TensorFigure& figure);

/// "[0:4, 2]", the indices of the leading dims in Python's notation; a whole dim is ":". Several are joined by " and ".
std::string heading(const Slice& slice, c10::IntArrayRef sizes);

/// "LocalShardsWrapper of 2 shards".
std::string name_of_local_shards(size_t n_shards);

/// "[8, 16] as [Shard(0)] on 4 ranks (0-3), 512 bytes", "... on (dp=2, tp=2), 512 bytes" if mesh dims have names, or "LocalShardsWrapper of 2 shards
/// on rank 1, 64 bytes". Placements with many sizes are shortened to `max_width`, if it is above 0.
std::string caption(const TensorFigure& figure, int64_t max_width = 0);

/// "a stack of 3 terms: their sum is the tensor", or "" if there is one term.
std::string note_on_terms(const TensorFigure& figure);

}  // namespace shardwise
