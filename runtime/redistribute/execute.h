// runtime/redistribute/execute.h: carries out plans: the only place that moves a tensor's values between ranks.
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"

#include <memory>
#include <optional>

namespace shardwise {

class DTensorImpl;

/// This rank's pieces of the same tensor laid out as `destination`: the source's own where nothing changes, else new memory.
/// Below autograd. Collective over both meshes; with two different meshes other ranks of the world have nothing to do.
///
/// On meta (DeviceMesh::on_meta) nothing is sent; a source with memory may go there, none may come from there.
///
/// Throws: c10::ValueError for differing sizes, dtypes or worlds, c10::NotImplementedError out of meta. Cost: plan()'s traffic; buffers of at most what is sent and
/// received; the plan comes from a cache of this thread.
Shards move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination, const PlanOptions& options = {});

/// The same of a tensor. Where its rows have owners (runtime/tensor/owned_rows.h) these send them, each once to a rank that lacks it.
Shards move(const DTensorImpl& tensor, const SpecPtr& destination, const PlanOptions& options = {});
/// Only that: nothing, and nothing is sent, where rows have no owners or `destination` wants terms of a sum.
std::optional<Shards> move_owned_rows(const DTensorImpl& tensor, const SpecPtr& destination);

/// move() of pieces without waiting for the last messages, if the move ends with messages. Pre: not on meta.
std::unique_ptr<PendingMove> start_move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination,
                                        const PlanOptions& options = {});

/// What this thread kept from move to move.
struct MoveCounters {
  int64_t plan_hits = 0;
  int64_t plan_misses = 0;
  int64_t n_plans = 0;  // kept now; at most 1,024
  int64_t buffer_hits = 0;
  int64_t buffer_misses = 0;
  int64_t buffer_bytes = 0;  // kept now; at most BufferPool::kMaxKeptBytes
};
MoveCounters move_counters();

}  // namespace shardwise
