// plans/route.h: the sequences of steps that lead from one layout to another. Pure.
#pragma once

#include "plans/plan.h"

namespace shardwise {

/// The steps that move the fewest bytes. Partial mesh dims that end as a Shard are reduced into it, the last mesh dim first. Those that end
/// replicated are all-reduced before or after the exchange, whichever has the smaller pieces. One exchange moves everything else, and new
/// Partial mesh dims are made from replicas. If reductions do not commute (a sum of maxima), each is done in its turn.
std::vector<Step> direct_steps(const Layout& source, const Layout& destination);

/// The steps with the least time over `links`, among direct_steps() and all sequences of changes of one mesh dim. Found by Dijkstra's
/// shortest path over the placements that each mesh dim may take. Pre: both layouts have the same grid. `element_bytes`: the size of the
/// dtype.
std::vector<Step> fastest_steps(const Layout& source, const Layout& destination, int64_t element_bytes,
                                const std::vector<Link>& links);

}  // namespace shardwise
