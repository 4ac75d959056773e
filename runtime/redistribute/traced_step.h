// runtime/redistribute/traced_step.h: a step of a traced program that needs values is one operator of the graph, and runs when the graph runs.
//
//   shardwise::start_move(Tensor[] pieces, str what, Tensor? after) -> Tensor  what: "float32 [8, 4] as [Shard(0)] ... -> [Replicate()] on ..."
//   shardwise::finish_move(Tensor started, Tensor[] pieces, str what) -> Tensor[]
//   shardwise::call(Tensor[] pieces, str what, Tensor? after) -> Tensor[]      the other steps, such as random numbers and the checks of indices
//
// A move is two operators, so that a compiler can put others between them. The first keeps its place among the steps and starts all messages
// but those that depend on others; its result owns the move, and has no elements. The second takes the pieces so that their memory is not
// reused before it. The text identifies the step in a table of this process. It is a text and not a number, because compilers cache graphs across
// processes by their contents: equal texts mean equal steps in every process.
//
// Steps keep their order, which is the same on all ranks. For a compiler that orders operators by their operands alone, `after` is what the step before
// gave: the result of start_move, or the last result of call, which has no elements and is made for that.
#pragma once

#include "runtime/tensor/spec.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace shardwise {

struct TracedStep {
  std::vector<SpecPtr> operands;
  std::vector<SpecPtr> results;
  std::string words;  // everything else that the function depends on
  // One of these gives this rank's pieces of the results from those of the operands. Called below autograd.
  std::function<Shards(const Shards& pieces)> call = {};
  std::function<std::unique_ptr<PendingMove>(const Shards& pieces)> start_move = {};
  // The same step for pieces of other sizes, one per operand. A graph with symbols gives such pieces. Results have the sizes of the first.
  std::function<TracedStep(at::TensorList pieces)> for_sizes = {};
};

/// Calls the operators of the step below autograd: pieces of tracers give pieces of tracers. The step's function is called if the tracer runs them.
Shards add_step(const TracedStep& step, const Shards& pieces);
/// The results of the step with this text. Throws: c10::ValueError if no program of this process was traced with it.
const std::vector<SpecPtr>& results_of_step(const std::string& what);

}  // namespace shardwise
