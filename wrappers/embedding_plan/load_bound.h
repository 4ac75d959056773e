// wrappers/embedding_plan/load_bound.h: a lower bound of the most loaded rank's time, over all plans. Pure.
//
// Suppose a plan takes at most time T. Then each slice, and each replicated table, takes at most T minus the time that every rank pays. Among the
// treatments of a table that keep to this limit, take the one with the least mean seconds over the ranks. The most loaded rank takes at least the
// mean. So if the sum of these means over all tables exceeds T, no plan takes T. The same holds
//
//   for a weighted mean, in which rank 0 counts more, because it has the first rows of all skewed tables sharded by rows
//   with memory_per_rank, for seconds + price * bytes, with any price of a byte (Lagrangian relaxation)
//
// The bound is the largest T that this argument rules out. It is computed for plans that replicate no table, some, or all, because each kind pays
// other latencies; the least of the three counts.
#pragma once

#include "wrappers/embedding_plan/load_model.h"

namespace shardwise::detail {

/// The bound in seconds, over plans of any strategy that keep to the given thresholds. Cost: O(tables), some hundred times.
double load_bound(const LoadModel& model, const EmbeddingPlanOptions& options);

/// The bound over plans that may replicate or shard tables as stated; infinity if there is no such plan.
double load_bound(const LoadModel& model, const EmbeddingPlanOptions& options, bool may_replicate, bool may_shard);

}  // namespace shardwise::detail
