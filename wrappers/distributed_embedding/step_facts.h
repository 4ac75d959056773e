// wrappers/distributed_embedding/step_facts.h: facts of a lookup that ranks must share, compared in the message of its ids.
#pragma once

#include "ops/embedding/gradient_sink.h"
#include "wrappers/distributed_embedding/table_lanes.h"

#include <array>
#include <memory>
#include <vector>

namespace shardwise {

/// How many lookups of a layer were started and waited for on this rank.
struct LookupCounts {
  int64_t n_started = 0;
  int64_t n_waited = 0;
};

/// A few numbers in a message of ids that identify its lookup. Each is in [0, 2^31).
struct StepFacts {
  static constexpr size_t kSize = 3;

  int64_t number = 0;     // of the lookup, from 1
  int64_t n_waited = 0;   // number of earlier lookups that were waited for
  int64_t gradients = 0;  // digest of the destinations of the tables' gradients

  std::array<int64_t, kSize> numbers() const { return {number, n_waited, gradients}; }
  static StepFacts of(const int64_t* numbers) { return {numbers[0], numbers[1], numbers[2]}; }
  bool operator==(const StepFacts&) const = default;
};

/// The facts of this rank, and the values that `gradients` is a digest of.
struct OwnFacts {
  StepFacts facts;
  std::vector<int64_t> gradients;  // by table
  std::shared_ptr<LookupCounts> counts;

  OwnFacts() = default;
  /// The facts of the lookup that `counts` counted last. `sinks`: by table; empty if the lookup fails.
  OwnFacts(std::shared_ptr<LookupCounts> counts, const std::vector<GradientSink>& sinks,
           const std::vector<at::Tensor>& tables);
};

/// Compares the facts of all ranks. `all`: by rank, equal on all ranks. Throws: on all ranks alike, c10::ValueError that names two ranks, if facts
/// differ. Before throwing it sets `own.counts` as if all lookups had been waited for, so that the layer remains usable. Collective if gradients
/// differ: ranks then exchange the values behind the digests.
void check_alike(const TableLanes& lanes, const std::vector<StepFacts>& all, const OwnFacts& own);

}  // namespace shardwise
