#include "wrappers/embedding_plan/embedding_plan.h"

#include "text/check.h"
#include "text/table.h"
#include "wrappers/embedding_plan/cost_balanced.h"
#include "wrappers/embedding_plan/load_bound.h"
#include "wrappers/embedding_plan/slice_dealing.h"
#include "wrappers/embedding_plan/slice_groups.h"

#include <algorithm>

namespace shardwise {
namespace {

void check_memory(const EmbeddingPlan& plan) {
  if (!plan.options.memory_per_rank) return;
  const int64_t rank = plan.heaviest_rank(), n_bytes = plan.ranks[rank].load.n_bytes();
  SW_CHECK_VALUE(n_bytes <= *plan.options.memory_per_rank,
                 "[plan_embeddings] rank {} needs {} bytes, more than memory_per_rank {}. Use more ranks, strategy "
                 "\"cost_balanced\", or lower row_slice_threshold, column_slice_threshold or data_parallel_threshold.",
                 rank, detail::with_commas(n_bytes), detail::with_commas(*plan.options.memory_per_rank));
}

/// Computes groups, loads and bound of a plan whose slices are valid.
EmbeddingPlan finish(const detail::LoadModel& model, int64_t n_ranks, const EmbeddingPlanOptions& options,
                     std::vector<TablePlan> table_plans) {
  EmbeddingPlan plan{model.tables(), n_ranks, options, std::move(table_plans), {}, 0};
  plan.ranks = detail::group_slices(plan.tables, n_ranks, plan.table_plans);
  const std::vector<RankLoad> loads = detail::rank_loads(model, plan.table_plans);
  for (int64_t rank = 0; rank < n_ranks; ++rank) plan.ranks[rank].load = loads[rank];
  plan.bound_seconds = detail::load_bound(model, options);
  return plan;
}

std::string_view words_of(EmbeddingStrategy strategy) {
  switch (strategy) {
    case EmbeddingStrategy::kBasic:
      return "dealt in turn";
    case EmbeddingStrategy::kMemoryBalanced:
      return "dealt forth and back by bytes";
    default:
      return "dealt largest first onto the rank of the fewest bytes";
  }
}

}  // namespace

EmbeddingPlan plan_embeddings(const std::vector<TableConfig>& tables, int64_t n_ranks,
                              const EmbeddingPlanOptions& options) {
  check_tables(tables);
  check_options(options, n_ranks);
  const detail::LoadModel model(tables, n_ranks, options);
  std::vector<TablePlan> table_plans;
  if (options.strategy == EmbeddingStrategy::kCostBalanced) {
    table_plans = detail::balance_cost(model, options);
  } else {
    std::vector<detail::Slicing> slicings = detail::slice_by_thresholds(tables, n_ranks, options);
    for (detail::Slicing& slicing : slicings)
      if (slicing.treatment == Treatment::kTableParallel)
        slicing.reason += fmt::format("; {}", words_of(options.strategy));
    const auto slices = detail::loose_slices(model, slicings);
    table_plans = detail::place(tables, slicings, slices, detail::deal(slices, n_ranks, options.strategy), n_ranks);
  }
  EmbeddingPlan plan = finish(model, n_ranks, options, std::move(table_plans));
  check_memory(plan);
  return plan;
}

EmbeddingPlan arrange_embeddings(const std::vector<TableConfig>& tables, int64_t n_ranks,
                                 const EmbeddingPlanOptions& options, std::vector<TablePlan> table_plans) {
  check_tables(tables);
  check_options(options, n_ranks);
  detail::complete_slices(tables, n_ranks, table_plans);
  return finish(detail::LoadModel(tables, n_ranks, options), n_ranks, options, std::move(table_plans));
}

void EmbeddingPlan::check_rank(int64_t rank) const {
  SW_CHECK_INDEX(rank >= 0 && rank < n_ranks,
                 "[EmbeddingPlan] rank {} is not one of the plan's {} ranks. Give a rank below that.", rank, n_ranks);
}

std::vector<TableSlice> EmbeddingPlan::slices_on(int64_t rank) const {
  check_rank(rank);
  std::vector<TableSlice> slices;
  for (const TablePlan& table : table_plans)
    if (table.treatment == Treatment::kReplicated) slices.push_back(table.slices[rank]);
  for (const auto& [table, slice] : ranks[rank].sharded) slices.push_back(table_plans[table].slices[slice]);
  std::ranges::stable_sort(slices, [](const TableSlice& a, const TableSlice& b) {
    return std::pair(a.group, a.first_row) < std::pair(b.group, b.first_row);
  });
  return slices;
}

int64_t EmbeddingPlan::most_loaded_rank() const {
  const auto seconds = [](const RankEmbeddings& rank) { return rank.load.seconds; };
  return std::ranges::max_element(ranks, {}, seconds) - ranks.begin();
}

int64_t EmbeddingPlan::heaviest_rank() const {
  const auto n_bytes = [](const RankEmbeddings& rank) { return rank.load.n_bytes(); };
  return std::ranges::max_element(ranks, {}, n_bytes) - ranks.begin();
}

}  // namespace shardwise
