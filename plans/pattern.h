// plans/pattern.h: the collective that the messages of a step amount to. Pure.
#pragma once

#include "plans/plan.h"

namespace shardwise {

enum class Pattern : uint8_t {
  kSlice,        // no message: each rank holds what it needs
  kMakePartial,  // no message
  kPermute,      // the same pieces on other ranks
  kAllGather,
  kAllToAll,
  kReduceScatter,
  kAllReduce,
};

Pattern pattern_of(const Step& step);
/// "slice", "make_partial", "permute", "all_gather", "all_to_all", "reduce_scatter", "all_reduce".
const char* name_of(Pattern pattern);
/// True if some rank sends a message in the step.
bool sends(const Step& step);

}  // namespace shardwise
