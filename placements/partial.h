// placements/partial.h: questions about Partial placements that planning, dispatch and gradients share.
#pragma once

#include "placements/placement.h"

#include <vector>

namespace shardwise {

/// True for sum and average: they commute with each other and with linear operators.
inline bool is_linear(Reduce reduce) { return reduce == Reduce::kSum || reduce == Reduce::kAvg; }

/// The placements once every Partial has been reduced: replicas in its place.
inline std::vector<Placement> without_partial(c10::ArrayRef<Placement> placements) {
  std::vector<Placement> result = placements.vec();
  for (Placement& placement : result)
    if (placement.is_partial()) placement = Placement::replicate();
  return result;
}

}  // namespace shardwise
