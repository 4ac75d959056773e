// plans/route.h: the sequences of steps that lead from one layout to another. Pure.
#pragma once

#include "plans/plan.h"

namespace shardwise {

/// The fewest bytes: Partial mesh dims that end as a Shard are reduced into it, the last mesh dim first; those that end replicated
/// are all-reduced while the pieces are small; one exchange moves everything else; new Partial mesh dims are made of
/// replicas. Where reductions do not commute (a sum of maxima) each is done in its turn.
std::vector<Step> direct_steps(const Layout& source, const Layout& destination);

/// The least time over `links` among direct_steps() and all sequences of changes of one mesh dim, found by Dijkstra's shortest
/// path over the placements that each mesh dim may take. Pre: one grid. `element_bytes` of the dtype.
std::vector<Step> fastest_steps(const Layout& source, const Layout& destination, int64_t element_bytes,
                                const std::vector<Link>& links);

}  // namespace shardwise
