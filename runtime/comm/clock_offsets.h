// runtime/comm/clock_offsets.h: the differences between the clocks of a group's ranks, to show several machines on one timeline.
#pragma once

#include "runtime/comm/group.h"

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace shardwise {

/// How far the clock of `other` is ahead of that of `first`, from barriers that both were in: the times when each entered and left the first
/// barrier, the second one, and so on, in nanoseconds of its own clock. Nobody leaves a barrier before all have entered it, which bounds the
/// difference from both sides. The error is at most half the distance between the tightest bounds. (F. Cristian, Probabilistic clock
/// synchronization, 1989, does so with messages between two processes.)
int64_t clock_offset(c10::IntArrayRef first, c10::IntArrayRef other);
/// The clock offset of each member, by group order, relative to the first member; 0 for ranks on the first member's machine. Collective: 17
/// gathers of a few numbers, which CommTrace leaves out.
std::vector<int64_t> clock_offsets(const Group& group);

}  // namespace shardwise
