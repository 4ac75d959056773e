// plans/pattern.h: what the messages of a step amount to. Pure.
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
/// True where some rank sends something.
bool sends(const Step& step);

}  // namespace shardwise
