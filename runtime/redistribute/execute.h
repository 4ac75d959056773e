// runtime/redistribute/execute.h: executes plans. This is the only place that moves a tensor's values between ranks.
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/spec.h"

#include <memory>
#include <optional>

namespace shardwise {

class DTensorImpl;

/// The memory of a move's result. kOwn: new memory, unless nothing changes. kShared: as much as possible of the source's memory, so nobody may
/// write to the result. kTaken: the move may write to the source's memory, so nobody may use the source any more.
enum class MoveMemory : uint8_t { kOwn, kShared, kTaken };

/// This rank's pieces of the tensor laid out as `destination`: the source's own pieces if nothing changes, otherwise new memory. With kShared
/// a piece whose values this rank has is a view, unless another step of the move makes new memory.
/// Below autograd. Collective over both meshes. With two different meshes, other ranks of the world do nothing.
///
/// On meta (DeviceMesh::on_meta) the same messages are planned and counted, and nothing is sent. A source with memory may move to a mesh on
/// meta, but not back.
///
/// Throws: c10::ValueError for different sizes, dtypes or worlds, c10::NotImplementedError for a move out of meta. Cost: plan()'s traffic,
/// and buffers of at most the bytes sent and received. Plans come from a cache of this thread.
Shards move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination, const PlanOptions& options = {},
            MoveMemory memory = MoveMemory::kOwn);

/// The same for a tensor. If its rows have owners (runtime/tensor/owned_rows.h), the owners send each row once to each rank that lacks it.
Shards move(const DTensorImpl& tensor, const SpecPtr& destination, const PlanOptions& options = {},
            MoveMemory memory = MoveMemory::kOwn);
/// Only the move by owners. Returns nothing, and sends nothing, if the rows have no owners or `destination` is Partial.
std::optional<Shards> move_owned_rows(const DTensorImpl& tensor, const SpecPtr& destination);

/// True if a move would leave on every rank what it has: the layouts differ only along mesh dims of one rank.
bool leaves_in_place(const Spec& source, const Spec& destination);

/// move() without waiting for the last messages, if it ends with messages. Pre: not from memory to meta, not traced.
std::unique_ptr<PendingMove> start_move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination,
                                        const PlanOptions& options = {});

/// Counters of this thread's caches of plans and buffers.
struct MoveCounters {
  int64_t plan_hits = 0;
  int64_t plan_misses = 0;
  int64_t n_plans = 0;  // in the cache now; at most 1,024
  int64_t buffer_hits = 0;
  int64_t buffer_misses = 0;
  int64_t buffer_bytes = 0;  // in the cache now; at most BufferPool::kMaxKeptBytes
};
MoveCounters move_counters();

}  // namespace shardwise
