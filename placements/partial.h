// placements/partial.h: lists of placements with Replicate in the place of some.
#pragma once

#include "placements/placement.h"

#include <functional>
#include <vector>

namespace shardwise {

/// The placements with Replicate in the place of those that `is_replaced`.
template <class Predicate>
std::vector<Placement> replicated_where(c10::ArrayRef<Placement> placements, const Predicate& is_replaced) {
  std::vector<Placement> result = placements.vec();
  for (Placement& placement : result)
    if (std::invoke(is_replaced, placement)) placement = Placement::replicate();
  return result;
}

/// The placements once every Partial has been reduced: replicas in its place.
inline std::vector<Placement> without_partial(c10::ArrayRef<Placement> placements) {
  return replicated_where(placements, [](const Placement& placement) { return placement.is_partial(); });
}

}  // namespace shardwise
