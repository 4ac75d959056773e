// runtime/comm/order_check.h: whether all ranks are about to do the same, before they do it.
//
// A collective that one rank calls and another does not is a hang, or numbers that belong to something else. With
// SHARDWISE_CHECK=1 every communication first compares what it is, how long, for whom, of which layouts and in which thread, over its group:
//
//   [check] rank 0 is about to all_reduce 16 elements for aten::mm (Float [4, 4] as [Partial(sum)] on (4)) at train.py:31 in step, rank 2 to
//   all_to_all for redistribute (Long [8] as [Shard(0)] on (4) -> [Replicate()]) at train.py:40 in step. Every rank must make the
//   same calls in the same order.
//
// A call that other ranks never make is named after SHARDWISE_CHECK_SECONDS.
#pragma once

#include "runtime/comm/group.h"

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace shardwise {

/// Off, unless the environment says SHARDWISE_CHECK=1 when the first message is sent. All ranks must agree. Returns what it was.
bool set_order_check(bool is_on);
/// Cost: one read.
bool checks_order();

/// What one rank is about to do.
struct CheckedCall {
  const char* collective;
  std::optional<c10::ScalarType> dtype;
  int64_t length = -1;  // elements; -1 where ranks bring different numbers
  std::string op;
  std::string layouts;
  std::string source;  // of the program; ranks may make one call in different lines
  uint64_t call = 0;   // among the group's
};

/// Compares the members' calls, all but their sources. Communication calls it, on all members.
///
/// Returns "", or on all members an error that names two whose calls differ.
/// Throws: c10::DistBackendError where a member does not come within SHARDWISE_CHECK_SECONDS (10 where the environment does not say), with what
/// it called last. Then the group is of no more use.
/// Cost: the text of the call, a note in the store (call_notes.h), and a gather of one number per rank, which CommTrace leaves out.
std::string compare_calls(const Group& group, const CheckedCall& own);

}  // namespace shardwise
