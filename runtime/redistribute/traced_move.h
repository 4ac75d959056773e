// runtime/redistribute/traced_move.h: a move in a traced program is one operator of the graph, which moves when the graph runs.
//
//   shardwise::move(Tensor[] pieces, str what) -> Tensor[]        what: "float32 [8, 4] as [Shard(0)] ... -> [Replicate()] on ..."
//
// The text identifies the two layouts in a table of this process. It is a text and not a number, because compilers cache graphs across
// processes by their contents: equal texts mean equal moves in every process.
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

/// move() while a program is traced: calls the operator, below autograd. Nothing is sent unless the tracer runs the operator.
Shards traced_move(const TracedMove& move, const Shards& pieces);
/// The move of a text in a graph. Throws: c10::ValueError if no program of this process was traced with it.
const TracedMove& traced_move_of(const std::string& what);

}  // namespace shardwise
