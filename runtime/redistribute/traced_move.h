// runtime/redistribute/traced_move.h: a move in a program that is traced: one operator of the graph, which moves when the graph runs.
//
//   shardwise::move(Tensor[] pieces, str what) -> Tensor[]        what: "float32 [8, 4] as [Shard(0)] ... -> [Replicate()] on ..."
//
// The text names the two layouts in a table of this process. A text, and no number, because compilers keep graphs over the end of a
// process by what stands in them: equal texts mean equal moves, in every process.
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/shards.h"

#include <memory>
#include <string>

namespace shardwise {

struct TracedMove {
  SpecPtr source;
  SpecPtr destination;
  PlanOptions options = {};
};

/// What move() is while a program is traced: calls the operator, below autograd. Sends nothing unless the tracer runs the operator.
Shards traced_move(const TracedMove& move, const Shards& pieces);
/// The same for start_move(): nothing is under way.
std::unique_ptr<PendingMove> start_traced_move(const TracedMove& move, const Shards& pieces);

/// Of a text that stands in a graph. Throws: c10::ValueError where no program of this process was traced with it.
const TracedMove& traced_move_of(const std::string& what);

}  // namespace shardwise
