// runtime/comm/call_notes.h: what each rank of a group does, for the error of another rank that waits for it in vain.
//
// The texts lie in the store of the World, so that they can be read when messages fail. Written where a communication has failed, and
// under SHARDWISE_CHECK=1 before each.
#pragma once

#include "runtime/comm/group.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

struct CallNote {
  uint64_t call = 0;  // among the communications of all members with these ranks, from 1; 0 where members may stay away
  std::string text;   // "all_reduce of 16 for aten::mm (Float) at train.py:31 in step"
};

/// Leaves this rank's note for the group of `ranks`, in place of its last one. Nothing where there is no store, or it is gone.
void leave_note(const std::vector<int64_t>& ranks, const CallNote& note) noexcept;

/// The members' notes, by group order, and nothing for a member without one. Waits up to `patience`, in all, for those that have none and for
/// those whose last one is of a call before `call`.
std::vector<std::optional<CallNote>> read_notes(const std::vector<int64_t>& ranks, uint64_t call,
                                                std::chrono::milliseconds patience) noexcept;

/// "rank 1: call 12, all_reduce for aten::mm (Float); rank 2: nothing is known". Leaves `own_rank` out, and shows up to eight ranks.
std::string describe_notes(const std::vector<int64_t>& ranks, int64_t own_rank,
                           const std::vector<std::optional<CallNote>>& notes);

}  // namespace shardwise
