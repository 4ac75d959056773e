// runtime/comm/lost_groups.h: groups over which this process must not send any more.
//
// A group is lost after one of its communications failed: messages of other ranks may still be in flight and would meet the wrong call. All
// groups are lost in a process that was forked from a rank: it has the rank's sockets but none of its threads, and its messages would be
// taken for the rank's.
#pragma once

#include "runtime/comm/group.h"

#include <atomic>
#include <string>

namespace shardwise {

namespace detail {
extern std::atomic<bool> some_group_is_lost;
}

/// False if no group is lost. Cost: one read.
inline bool some_group_is_lost() { return detail::some_group_is_lost.load(std::memory_order_relaxed); }

/// Marks the group as lost: it takes no more messages. The first reason is kept.
void lose_group(GroupRecord& group, const std::string& why);

/// Throws for a lost group, in the name of `call` ("all_reduce for aten::mm"): c10::DistBackendError with the first reason, or
/// c10::ValueError in a forked process.
void check_not_lost(const Group& group, const std::string& call);

}  // namespace shardwise
