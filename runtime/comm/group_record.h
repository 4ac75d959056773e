// runtime/comm/group_counts.h: numbers of what the members of a group make in one order.
#pragma once

#include "runtime/comm/group.h"

#include <cstdint>

namespace shardwise {

/// How many things of this kind were numbered before over `group`: equal on its members, if they make them in one order. Sends nothing. `kind`
/// lives as long as the program. Thread-safe.
int64_t next_number(const Group& group, const char* kind);

}  // namespace shardwise
