// placements/partial.h: lists of placements with some replaced by Replicate.
#pragma once

#include "placements/placement.h"

#include <functional>
#include <vector>

namespace shardwise {

/// The placements, with Replicate in place of each one for which `is_replaced` holds.
template <class Predicate>
std::vector<Placement> replicated_where(c10::ArrayRef<Placement> placements, const Predicate& is_replaced) {
  std::vector<Placement> result = placements.vec();
  for (Placement& placement : result)
    if (std::invoke(is_replaced, placement)) placement = Placement::replicate();
  return result;
}

/// The placements after every Partial has been reduced to replicas.
inline std::vector<Placement> without_partial(c10::ArrayRef<Placement> placements) {
  return replicated_where(placements, [](const Placement& placement) { return placement.is_partial(); });
}

}  // namespace shardwise
