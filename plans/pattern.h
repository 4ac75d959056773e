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
/// True if some rank sends a message in the step.
bool sends(const Step& step);

}  // namespace shardwise
