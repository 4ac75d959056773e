// runtime/redistribute/traced_step.h: a step of a traced program that needs values is one operator of the graph, and runs when the graph runs.
//
//   shardwise::move(Tensor[] pieces, str what) -> Tensor[]        what: "float32 [8, 4] as [Shard(0)] ... -> [Replicate()] on ..."
//   shardwise::call(Tensor[] pieces, str what) -> Tensor[]        the other steps, such as random numbers and the checks of indices
//
// The text identifies the step in a table of this process. It is a text and not a number, because compilers cache graphs across
// processes by their contents: equal texts mean equal steps in every process.
#pragma once

#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"

#include <functional>
#include <string>
#include <vector>

namespace shardwise {

struct TracedStep {
  std::vector<SpecPtr> operands;
  std::vector<SpecPtr> results;
  std::string words;  // everything else that `run` depends on
  /// Returns this rank's pieces of the results from those of the operands. Called below autograd.
  std::function<Shards(const Shards& pieces)> run;
};

inline constexpr const char* kMoveInGraph = "shardwise::move";
inline constexpr const char* kCallInGraph = "shardwise::call";

/// Calls the operator `op`, one of the two, below autograd: pieces of tracers give pieces of tracers. `run` is called if the tracer runs the operator.
Shards add_step(const char* op, const TracedStep& step, const Shards& pieces);
/// The results of the step with this text. Throws: c10::ValueError if no program of this process was traced with it.
const std::vector<SpecPtr>& results_of_step(const std::string& what);

}  // namespace shardwise
