// pictures/tensor_figure.h: a layout, or what one rank holds, as slices of 2 dims: which ranks hold which rows and columns, at which
// indices of the other dims.
//
// [4, 6, 5] with dim 0 sharded over 2 ranks: two slices, [0:2] and [2:4], of one cell each.
#pragma once

#include "placements/layout.h"

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// A box that ranks hold, as rows and columns whatever dims the tensor has: [0, 1) of a dim that it lacks.
struct FigureCell {
  Interval rows, columns;  // of the last two dims; not empty
  Box box;
  std::vector<int64_t> ranks;  // in the order of the grid
  std::vector<std::vector<int64_t>>
      terms;  // of a Partial tensor: the ranks that hold each term of the sum; empty for any other
};

/// The last two dims of a tensor, wherever the same boxes meet the indices of the leading ones.
struct Slice {
  std::vector<Box> where;               // ranges of the leading dims; one box without intervals where there are none
  std::vector<FigureCell> cells;        // disjoint
  std::vector<Interval> rows, columns;  // between the grid lines, ascending; the lines stand where cells begin or end
  int64_t n_left_out = 0;               // above 0: stands for that many ranges of a leading dim, and has no cells
};

/// What one rank holds.
struct RankShare {
  int64_t rank = 0;
  std::vector<Box> boxes;
  int64_t n_bytes = 0;
};

/// What one rank holds of a tensor, where nothing is known of the others: the pieces of a LocalShardsWrapper.
struct LocalShards {
  int64_t rank = 0;
  std::vector<Box> boxes;  // disjoint, of one dimensionality
};

struct TensorFigure {
  std::optional<Layout> layout;        // none of LocalShards
  std::vector<std::string> dim_names;  // of the mesh, or none
  Dims sizes;                          // of the tensor; without a layout as far as the shards reach
  int64_t element_bytes = 0;
  std::vector<Slice> slices;      // by ascending indices; none for a tensor without elements
  std::string reductions;         // "sum", or "sum of max" of several Partial mesh dims; empty where there are none
  int64_t n_terms = 1;            // of which such a reduction makes the tensor
  std::vector<RankShare> shares;  // of every rank, in the order of the grid
};

/// A pure function of the layout, equal on every rank and on non-members. Of leading dims with many ranges the middle ones are
/// left out: at most about `max_slices` slices stay. `dim_names`: one per mesh dim, or none. Cost: O(boxes of all ranks * slices).
TensorFigure tensor_figure(const Layout& layout, int64_t element_bytes, const std::vector<std::string>& dim_names = {},
                           int64_t max_slices = 256);

/// The same of one rank's shards, at their true coordinates: where it holds nothing there is no cell.
TensorFigure tensor_figure(const LocalShards& shards, int64_t element_bytes, int64_t max_slices = 256);

/// Bytes of the whole tensor; 0 where they are not known.
int64_t bytes_of_tensor(const TensorFigure& figure);

/// "[0:4, 2]", the indices of the leading dims as they are written in Python; a whole dim is ":". Several are joined by " and ".
std::string heading(const Slice& slice, c10::IntArrayRef sizes);

/// "LocalShardsWrapper of 2 shards".
std::string name_of_local_shards(size_t n_shards);

/// "[8, 16] as [Shard(0)] on 4 ranks (0-3), 512 bytes", "... on (dp=2, tp=2), ranks 0-3, 512 bytes" where mesh dims have names, or
/// "LocalShardsWrapper of 2 shards on rank 1, 64 bytes". Placements of many sizes are shortened to the width, if one is given.
std::string caption(const TensorFigure& figure, int64_t max_width = 0);

/// "a stack of 3 terms: their sum is the tensor", or nothing where there is one term.
std::string note_on_terms(const TensorFigure& figure);

}  // namespace shardwise
