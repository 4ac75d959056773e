// runtime/comm/lost_groups.h: groups over which this process sends nothing any more.
//
// A communication of the group has failed: messages of the other ranks may be under way still, and would meet the wrong call. Or this process
// was forked from a rank: it has that rank's sockets and none of its threads, and what it sent would be taken for the rank's.
#pragma once

#include "runtime/comm/group.h"

#include <atomic>
#include <string>

namespace shardwise {

namespace detail {
extern std::atomic<bool> some_group_is_lost;
}

/// False where no group is lost. Cost: one read.
inline bool some_group_is_lost() { return detail::some_group_is_lost.load(std::memory_order_relaxed); }

/// From now on the group takes no more messages. The first reason stays.
void lose_group(GroupRecord& group, const std::string& why);

/// Throws, in the name of `call` ("all_reduce for aten::mm"), for a lost group: c10::DistBackendError with the first reason, and
/// c10::ValueError in a forked process.
void check_not_lost(const Group& group, const std::string& call);

}  // namespace shardwise
