// runtime/redistribute/move_many.h: several moves that share messages.
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/spec.h"

#include <vector>

namespace shardwise {

/// The default for how many bytes of global tensors share messages: the bucket size of torch's DistributedDataParallel.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

/// Several moves. Their exchanges and all-reduces over the same group share messages, up to `bucket_bytes` of global tensors at a time.
/// Pre: lists of equal length, in the same order on all ranks.
std::vector<Shards> move_many(c10::ArrayRef<SpecPtr> sources, const std::vector<Shards>& shards,
                              c10::ArrayRef<SpecPtr> destinations, const PlanOptions& options = {},
                              int64_t bucket_bytes = kBucketBytes);

}  // namespace shardwise
