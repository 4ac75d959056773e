// runtime/comm/call_notes.h: notes on what each rank of a group does, for the error of a rank that waits for another in vain.
//
// The notes are in the World's store, so they can be read when messages fail. A rank writes one when a communication has failed and, under
// SHARDWISE_CHECK=1, before each communication.
#pragma once

#include "runtime/comm/group.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

struct CallNote {
  uint64_t call = 0;  // number among the communications of all these ranks, from 1; 0 if members may stay away
  std::string text;   // "all_reduce of 16 for aten::mm (Float) at train.py:31 in step"
};

/// Writes this rank's note for the group of `ranks` over its last one. Does nothing if there is no store, or it is gone.
void leave_note(const std::vector<int64_t>& ranks, const CallNote& note) noexcept;

/// The members' notes, by group order; nothing for a member without a note. Waits up to `patience` in total for members that have no note,
/// or only one of a call before `call`.
std::vector<std::optional<CallNote>> read_notes(const std::vector<int64_t>& ranks, uint64_t call,
                                                std::chrono::milliseconds patience) noexcept;

/// "rank 1: call 12, all_reduce for aten::mm (Float); rank 2: nothing is known". Omits `own_rank` and shows at most eight ranks.
std::string describe_notes(const std::vector<int64_t>& ranks, int64_t own_rank,
                           const std::vector<std::optional<CallNote>>& notes);

}  // namespace shardwise
