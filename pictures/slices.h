// pictures/slices.h: the index ranges of leading dims in which a tensor looks the same.
#pragma once

#include "pictures/tensor_figure.h"

#include <vector>

namespace shardwise::detail {

/// The slices of a tensor of these `sizes`, whose boxes are those of `cells` (disjoint, not empty): a new slice wherever the set of
/// boxes changes. Ranges that are not neighbours and show the same boxes share one slice.
///
/// Of each leading dim at most the `max_slices`-th root, of as many dims as lead, but at least 4 ranges are looked at: the others, in
/// its middle, become one slice without cells. Cost: O(cells * slices).
std::vector<Slice> slices_of(const std::vector<FigureCell>& cells, c10::IntArrayRef sizes, int64_t max_slices);

}  // namespace shardwise::detail
