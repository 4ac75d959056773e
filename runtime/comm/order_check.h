// runtime/comm/order_check.h: whether all ranks are about to do the same, before they do it.
//
// A collective that one rank calls and another does not is a hang, or numbers that belong to something else. With
// SHARDWISE_CHECK=1 every communication first compares what it is, for whom and of which layouts, over its group:
//
//   [check] rank 0 is about to all_reduce for aten::mm (Float [4, 4] as [Partial(sum)] on (4)), rank 2 to all_to_all for
//   redistribute (Long [8] as [Shard(0)] on (4) -> [Replicate()]). Every rank must make the same calls in the same order.
#pragma once

#include "runtime/comm/group.h"

#include <c10/core/ScalarType.h>

#include <optional>

namespace shardwise {

/// Off, unless the environment says SHARDWISE_CHECK=1 when the first message is sent. All ranks must agree. Returns what it was.
bool set_order_check(bool is_on);

/// Where the check is on: compares `collective`, `dtype` and the innermost CommScope's operator and layouts over the group.
/// A rank that never comes is the backend's to report, after its time-out.
///
/// Throws: c10::ValueError, on all members, naming two whose calls differ.
/// Cost: one read where it is off; else the layouts' text and a gather of one number per rank, which CommTrace leaves out.
void check_order(const Group& group, const char* collective, std::optional<c10::ScalarType> dtype = std::nullopt);

}  // namespace shardwise
