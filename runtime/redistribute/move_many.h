// runtime/redistribute/move_many.h: several moves that share messages.
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"

#include <vector>

namespace shardwise {

/// How many bytes of global tensors share messages, if a program does not say: what torch's DistributedDataParallel takes for a bucket.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

/// Several moves, whose exchanges and all-reduces of the same group share messages, up to `bucket_bytes` of global tensors at a time.
/// Pre: lists of one length, in the same order on all ranks.
std::vector<Shards> move_many(c10::ArrayRef<SpecPtr> sources, const std::vector<Shards>& shards,
                              c10::ArrayRef<SpecPtr> destinations, const PlanOptions& options = {},
                              int64_t bucket_bytes = kBucketBytes);

}  // namespace shardwise
