// wrappers/embedding_plan/plan_options.h: the options of a plan of embedding tables. Pure.
#pragma once

#include "plans/plan.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace shardwise {

/// How the slices of table-parallel tables are assigned to ranks. Ties: the earlier table first, then its earlier slice; the lower rank first.
enum class EmbeddingStrategy : uint8_t {
  kBasic,            // round robin, in the order of tables
  kMemoryBalanced,   // sorted by bytes, assigned back and forth: slices per rank differ by one at most
  kMemoryOptimized,  // largest first onto the lightest rank by bytes
  kCostBalanced,  // chooses treatments and slices, too: the least time of the most loaded rank, within the memory limit
};

/// "basic", "memory_balanced", "memory_optimized", "cost_balanced".
std::string_view to_string(EmbeddingStrategy strategy);
/// The reverse. Throws: c10::ValueError listing the four names.
EmbeddingStrategy strategy_from_string(std::string_view name);

/// The speed of a rank, for the model of load_model.h.
struct EmbeddingMachine {
  double memory_gb_per_s = 10;  // 1e9 bytes per second, read or written
  double ns_per_row = 20;       // to reach a row somewhere in memory
  double ns_per_segment = 50;   // to handle one rank's request to one slice, of any length
  bool operator==(const EmbeddingMachine&) const = default;
};

struct EmbeddingPlanOptions {
  EmbeddingStrategy strategy = EmbeddingStrategy::kMemoryOptimized;
  /// Thresholds in elements. A table of at most `data_parallel_threshold` is replicated. A table of at least `row_slice_threshold` is sharded by rows
  /// over all ranks. All other tables are table-parallel, in column slices of at most `column_slice_threshold`. Without one of the first two, no
  /// table gets that treatment; without the third, the largest slices are halved until each rank has a slice. kCostBalanced respects given thresholds
  /// and chooses freely where none is given.
  std::optional<int64_t> column_slice_threshold = {}, row_slice_threshold = {}, data_parallel_threshold = {};
  std::optional<int64_t> memory_per_rank = {};  // bytes of tables and optimizer state
  int64_t batch_per_rank = 1024;                // samples of a step
  int64_t state_bytes_per_element = 0;          // of the optimizer: 4 for Adagrad, 8 for Adam in float32
  int64_t state_bytes_per_row = 0;              // 4 for row-wise Adagrad
  /// The ranks as a mesh, row-major, and per mesh dim the link between ranks whose coordinates first differ in that dim. If empty: one dim of all
  /// ranks, and the default link.
  std::vector<int64_t> mesh_shape = {};
  std::vector<Link> links = {};
  EmbeddingMachine machine = {};

  bool operator==(const EmbeddingPlanOptions&) const = default;
};

inline constexpr int64_t kMaxPlannedRanks = int64_t{1} << 20;

/// Throws: c10::ValueError for invalid numbers of ranks, thresholds, limits, links or speeds, and for thresholds that contradict each other.
void check_options(const EmbeddingPlanOptions& options, int64_t n_ranks);

}  // namespace shardwise
