// ops/support/agreed_range.h: bounds of a tensor's values, equal on every rank.
#pragma once

#include "runtime/tensor/spec.h"

#include <utility>

namespace shardwise {

/// The lowest and the highest of all ranks' bounds for a tensor laid out as `spec`. Cost: an all-reduce of two numbers
/// per mesh dim that shards it.
std::pair<int64_t, int64_t> agreed_range(const Spec& spec, std::pair<int64_t, int64_t> own);

}  // namespace shardwise
