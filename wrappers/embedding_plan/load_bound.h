// wrappers/embedding_plan/load_bound.h: a time that the most loaded rank of no plan is below. Pure.
//
// Let T be a time. In a plan that takes no longer each slice, and each replicated table, takes at most T less what every rank pays. Of the
// treatments of a table that keep to this, one has the least mean over the ranks of its seconds. A mean is no more than the most,
// so where the sum of these over all tables is more than T, no plan takes T. The same holds
//
//   of a weighted mean, in which rank 0 counts more: the first rows of skewed tables, sharded by rows, meet there
//   with memory_per_rank, of seconds + price * bytes, whatever the price of a byte (Lagrange's relaxation)
//
// The bound is the largest T that this rules out, and the least over plans that replicate no table, some, or all, as each pays other
// latencies.
#pragma once

#include "wrappers/embedding_plan/load_model.h"

namespace shardwise::detail {

/// Seconds, among plans of any strategy that keep to the thresholds that are given. Cost: O(tables), some hundred times.
double load_bound(const LoadModel& model, const EmbeddingPlanOptions& options);

/// The bound of plans that replicate and shard as far as they may; infinity where there are none.
double load_bound(const LoadModel& model, const EmbeddingPlanOptions& options, bool may_replicate, bool may_shard);

/// What every rank pays in such plans, whatever is where.
double fixed_seconds(const LoadModel& model, bool may_replicate, bool may_shard);

}  // namespace shardwise::detail
