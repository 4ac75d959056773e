// wrappers/distributed_embedding/step_facts.h: facts of a lookup that ranks must share, compared in the message of its ids.
#pragma once

#include "ops/embedding/gradient_sink.h"
#include "wrappers/distributed_embedding/table_lanes.h"

#include <array>
#include <memory>
#include <vector>

namespace shardwise {

/// How often lookups of a layer were started and waited for on this rank.
struct LookupCounts {
  int64_t n_started = 0;
  int64_t n_waited = 0;
};

/// A few numbers in a message of ids, which say which lookup it belongs to. Each is in [0, 2^31).
struct StepFacts {
  static constexpr size_t kSize = 3;

  int64_t number = 0;     // of the lookup, from 1
  int64_t n_waited = 0;   // lookups before it that were waited for
  int64_t gradients = 0;  // digest of what becomes of the tables' gradients

  std::array<int64_t, kSize> numbers() const { return {number, n_waited, gradients}; }
  static StepFacts of(const int64_t* numbers) { return {numbers[0], numbers[1], numbers[2]}; }
  bool operator==(const StepFacts&) const = default;
};

/// The facts of this rank, and what they stand for.
struct OwnFacts {
  StepFacts facts;
  std::vector<int64_t> gradients;  // by table
  std::shared_ptr<LookupCounts> counts;

  OwnFacts() = default;
  /// The facts of the lookup that `counts` counted last. `sinks`: by table, empty where it fails.
  OwnFacts(std::shared_ptr<LookupCounts> counts, const std::vector<GradientSink>& sinks,
           const std::vector<at::Tensor>& tables);
};

/// `all`: by rank, known to all. Where they differ, `own.counts` become those of a layer whose lookups were all waited for, so that it goes
/// on. Throws: on all ranks alike, c10::ValueError that names two ranks. Collective where gradients differ: it sends what they stand for.
void check_alike(const TableLanes& lanes, const std::vector<StepFacts>& all, const OwnFacts& own);

}  // namespace shardwise
