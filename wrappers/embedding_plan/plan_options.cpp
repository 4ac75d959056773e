#include "wrappers/embedding_plan/plan_options.h"

#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shardwise {
namespace {

constexpr std::array<std::string_view, 4> kStrategies{"basic", "memory_balanced", "memory_optimized",
                                                      "cost_balanced"};  // in the order of the enum

constexpr int64_t kMaxStateBytes = 1024;

void check_threshold(const char* name, const std::optional<int64_t>& threshold, int64_t least) {
  SW_CHECK_VALUE(!threshold || *threshold >= least,
                 "[plan_embeddings] {} is {} elements. Give at least {}, or leave it out.", name, threshold.value_or(0),
                 least);
}

void check_mesh(const EmbeddingPlanOptions& options, int64_t n_ranks) {
  int64_t product = 1;  // 0 for an invalid extent
  for (const int64_t extent : options.mesh_shape)
    product = extent > 0 && extent <= n_ranks ? std::min(product * extent, n_ranks + 1) : 0;
  SW_CHECK_VALUE(
      options.mesh_shape.empty() || product == n_ranks,
      "[plan_embeddings] mesh_shape ({}) does not have {} ranks. Give extents whose product is the number of ranks.",
      fmt::join(options.mesh_shape, ", "), n_ranks);
  const size_t n_dims = std::max<size_t>(options.mesh_shape.size(), 1);
  SW_CHECK_VALUE(options.links.empty() || options.links.size() == n_dims,
                 "[plan_embeddings] {} links are given for ranks in a mesh of {} dims. Give one per mesh dim, or none.",
                 options.links.size(), n_dims);
  check_links("plan_embeddings", options.links);
}

}  // namespace

std::string_view to_string(EmbeddingStrategy strategy) { return kStrategies[static_cast<size_t>(strategy)]; }

EmbeddingStrategy strategy_from_string(std::string_view name) {
  const auto* const found = std::ranges::find(kStrategies, name);
  SW_CHECK_VALUE(found != kStrategies.end(),
                 "[plan_embeddings] strategy \"{}\" is not known. Use \"basic\", \"memory_balanced\", "
                 "\"memory_optimized\" or \"cost_balanced\".",
                 name);
  return static_cast<EmbeddingStrategy>(found - kStrategies.begin());
}

void check_options(const EmbeddingPlanOptions& options, int64_t n_ranks) {
  SW_CHECK_VALUE(n_ranks >= 1 && n_ranks <= kMaxPlannedRanks,
                 "[plan_embeddings] tables cannot be placed on {} ranks. Give 1 to {}.", n_ranks, kMaxPlannedRanks);
  check_threshold("column_slice_threshold", options.column_slice_threshold, 1);
  check_threshold("row_slice_threshold", options.row_slice_threshold, 1);
  check_threshold("data_parallel_threshold", options.data_parallel_threshold, 0);
  SW_CHECK_VALUE(!options.data_parallel_threshold || !options.row_slice_threshold ||
                     *options.data_parallel_threshold < *options.row_slice_threshold,
                 "[plan_embeddings] data_parallel_threshold {} and row_slice_threshold {} contradict each other: a "
                 "table of {} elements would be replicated and sharded by rows. Give a lower data_parallel_threshold.",
                 options.data_parallel_threshold.value_or(0), options.row_slice_threshold.value_or(0),
                 options.data_parallel_threshold.value_or(0));
  SW_CHECK_VALUE(!options.memory_per_rank || *options.memory_per_rank > 0,
                 "[plan_embeddings] memory_per_rank is {} bytes. Give at least 1, or leave it out.",
                 options.memory_per_rank.value_or(0));
  SW_CHECK_VALUE(options.batch_per_rank > 0, "[plan_embeddings] batch_per_rank is {} samples. Give at least 1.",
                 options.batch_per_rank);
  for (const auto& [name, n_bytes] : {std::pair{"state_bytes_per_element", options.state_bytes_per_element},
                                      std::pair{"state_bytes_per_row", options.state_bytes_per_row}})
    SW_CHECK_VALUE(n_bytes >= 0 && n_bytes <= kMaxStateBytes, "[plan_embeddings] {} is {}. Give 0 to {}.", name,
                   n_bytes, kMaxStateBytes);
  const EmbeddingMachine& machine = options.machine;
  SW_CHECK_VALUE(std::isfinite(machine.memory_gb_per_s) && machine.memory_gb_per_s > 0 &&
                     std::isfinite(machine.ns_per_row) && machine.ns_per_row >= 0 &&
                     std::isfinite(machine.ns_per_segment) && machine.ns_per_segment >= 0,
                 "[plan_embeddings] a machine of {} GB/s, {} ns per row and {} ns per segment is impossible. Give a "
                 "rate above 0 and times of at least 0.",
                 machine.memory_gb_per_s, machine.ns_per_row, machine.ns_per_segment);
  check_mesh(options, n_ranks);
}

}  // namespace shardwise
