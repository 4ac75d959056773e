// runtime/redistribute/alike_ranks.h: the ranks that hold and send as much as this rank does, in everything that it did.
#pragma once

#include "runtime/tensor/spec.h"

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace shardwise {

/// Returns the ranks in `others` whose pieces of every tensor in `made` have the same sizes as this rank's, and whose messages in every plan of this
/// thread are as many and as long. Pieces of the layouts in `by_place` must be the same ones. A slice of a mesh that another rank is not in counts as the slice through that rank. Sends nothing.
/// Cost: about a microsecond per rank and layout or step.
std::vector<int64_t> alike_ranks(const MadeSpecs& made, const std::set<const Spec*>& by_place,
                                 std::vector<int64_t> others);

/// The coordinates of `rank` in its own slice of the root of `mesh`; nothing if it is not in the root. Sends nothing.
std::optional<Dims> coordinates_of(const DeviceMesh& mesh, int64_t rank);

}  // namespace shardwise
