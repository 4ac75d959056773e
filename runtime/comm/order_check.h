// runtime/comm/order_check.h: checks before each communication that all ranks are about to make the same call.
//
// A collective that only some ranks call leads to a hang, or to values that belong to another call. With SHARDWISE_CHECK=1 every
// communication first compares over its group: the collective, its length, operator, layouts and thread. For example:
//
//   [check] rank 0 is about to all_reduce 16 elements for aten::mm (Float [4, 4] as [Partial(sum)] on (4)) at train.py:31 in step, rank 2 to
//   all_to_all for redistribute (Long [8] as [Shard(0)] on (4) -> [Replicate()]) at train.py:40 in step. Every rank must make the
//   same calls in the same order.
//
// If a rank never makes the call, the error names it after SHARDWISE_CHECK_SECONDS.
#pragma once

#include "runtime/comm/events.h"
#include "runtime/comm/group.h"

#include <string>

namespace shardwise {

/// Off by default, unless SHARDWISE_CHECK=1 is in the environment when the first message is sent. Must be the same on all ranks. Returns
/// the previous state.
bool set_order_check(bool is_on);
/// Cost: one read.
bool checks_order();

/// Compares the calls that the members are about to make, except for their sources. Called by Communication, on all members. `event`: this
/// rank's call with details.
///
/// Returns "" if they are equal; otherwise, on all members, an error text that names two ranks whose calls differ.
/// Throws: c10::DistBackendError if a member does not arrive within SHARDWISE_CHECK_SECONDS (10 if the environment does not set it); the
/// error says what that member called last. The group cannot be used afterwards.
/// Cost: the text of the call, a note in the store (call_notes.h), and a gather of one number per rank, which CommTrace leaves out.
std::string compare_calls(const Group& group, const CommCall& call, const CommEvent& event);

}  // namespace shardwise
