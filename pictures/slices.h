// pictures/slices.h: the index ranges of leading dims in which a tensor looks the same.
#pragma once

#include "pictures/tensor_figure.h"

#include <vector>

namespace shardwise::detail {

/// The slices of a tensor of these `sizes`, whose boxes are those of `cells` (disjoint, not empty): a new slice wherever the set of boxes changes.
/// Ranges that are not adjacent but have the same boxes share one slice.
///
/// At most max_slices^(1 / number of leading dims) ranges of each leading dim are used, but at least 4. The ranges in the middle of the dim that are
/// left out become one slice without cells. Cost: O(cells * slices).
std::vector<Slice> slices_of(const std::vector<FigureCell>& cells, c10::IntArrayRef sizes, int64_t max_slices);

}  // namespace shardwise::detail
