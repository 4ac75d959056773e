// wrappers/embedding_plan/plan_options.h: what a plan of embedding tables depends on besides the tables. Pure.
#pragma once

#include "plans/plan.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace shardwise {

/// How the slices of table-parallel tables are dealt to ranks. Ties: the earlier table, then its earlier slice, first; the lower
/// rank first.
enum class EmbeddingStrategy : uint8_t {
  kBasic,            // round robin, in the order of tables
  kMemoryBalanced,   // sorted by bytes, dealt forth and back: numbers of slices per rank differ by one at most
  kMemoryOptimized,  // largest first onto the lightest rank by bytes
  kCostBalanced,  // chooses treatments and slices, too: the least time of the most loaded rank, within the memory limit
};

/// "basic", "memory_balanced", "memory_optimized", "cost_balanced".
std::string_view to_string(EmbeddingStrategy strategy);
/// The reverse. Throws: c10::ValueError naming the four words.
EmbeddingStrategy strategy_from_string(std::string_view name);

/// What a rank can do, for the model of load_model.h.
struct EmbeddingMachine {
  double memory_gb_per_s = 10;  // 1e9 bytes per second, read or written
  double ns_per_row = 20;       // to reach a row somewhere in memory
  double ns_per_segment = 50;   // to handle what one rank asks of one slice, whatever its length
  bool operator==(const EmbeddingMachine&) const = default;
};

struct EmbeddingPlanOptions {
  EmbeddingStrategy strategy = EmbeddingStrategy::kMemoryOptimized;
  /// Elements. A table of at most `data_parallel_threshold` is replicated; one of at least `row_slice_threshold` is sharded by rows
  /// over all ranks; the others are table-parallel, in slices of columns of at most `column_slice_threshold`. Without the first two
  /// no table is treated so; without the third the largest are halved until each rank has a slice. kCostBalanced keeps to
  /// those that are given and chooses for itself where one is not.
  std::optional<int64_t> column_slice_threshold = {}, row_slice_threshold = {}, data_parallel_threshold = {};
  std::optional<int64_t> memory_per_rank = {};  // bytes of tables and optimizer state
  int64_t batch_per_rank = 1024;                // samples of a step
  int64_t state_bytes_per_element = 0;          // of the optimizer: 4 for Adagrad, 8 for Adam in float32
  int64_t state_bytes_per_row = 0;              // 4 for row-wise Adagrad
  /// The ranks as a mesh, row-major, and the link between ranks whose coordinates differ there first; one dim of all ranks, and the
  /// default link, where they are empty.
  std::vector<int64_t> mesh_shape = {};
  std::vector<Link> links = {};
  EmbeddingMachine machine = {};

  bool operator==(const EmbeddingPlanOptions&) const = default;
};

inline constexpr int64_t kMaxPlannedRanks = int64_t{1} << 20;

/// Throws: c10::ValueError for numbers of ranks, thresholds, limits, links or speeds that cannot be, and thresholds that contradict
/// each other.
void check_options(const EmbeddingPlanOptions& options, int64_t n_ranks);

}  // namespace shardwise
