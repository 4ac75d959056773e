// runtime/comm/clock_offsets.h: how far the clocks of a group's ranks are apart, for pictures of several machines on one line of time.
#pragma once

#include "runtime/comm/group.h"

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace shardwise {

/// When a rank entered and left a barrier, in nanoseconds by its own clock.
struct BarrierTimes {
  std::vector<int64_t> entered;
  std::vector<int64_t> left;
};

/// How much the clock of `other` is ahead of that of `first`, from the barriers that both were in: nobody leaves one before all have
/// entered it, which bounds the difference from both sides. Half of the distance of the tightest bounds is the most that it is wrong by.
/// (F. Cristian, Probabilistic clock synchronization, 1989, does so with messages between two.)
int64_t clock_offset(const BarrierTimes& first, const BarrierTimes& other);

/// Of each member of the group, by group order, against the first's; 0 for ranks of one machine. Collective: 17 gathers of a few numbers,
/// which CommTrace leaves out.
std::vector<int64_t> clock_offsets(const Group& group);

}  // namespace shardwise
