#include "wrappers/embedding_plan/slice_groups.h"

#include "text/check.h"

#include <algorithm>
#include <set>

namespace shardwise {
namespace {

constexpr std::array<std::string_view, 3> kTreatments{"replicated", "table-parallel",
                                                      "row-parallel"};  // in the order of the enum

}  // namespace

std::string_view to_string(Treatment treatment) { return kTreatments[static_cast<size_t>(treatment)]; }

Treatment treatment_from_string(std::string_view name) {
  const auto* const found = std::ranges::find(kTreatments, name);
  SW_CHECK_VALUE(
      found != kTreatments.end(),
      "[EmbeddingPlan] treatment \"{}\" is not known. Use \"replicated\", \"table-parallel\" or \"row-parallel\".",
      name);
  return static_cast<Treatment>(found - kTreatments.begin());
}

namespace detail {
namespace {

std::string box_text(const TableSlice& slice) {
  return fmt::format("[{}:{}, {}:{}] on rank {}", slice.rows.begin, slice.rows.end, slice.columns.begin,
                     slice.columns.end, slice.rank);
}

bool is_within(Interval part, int64_t length) {
  return part.begin >= 0 && part.begin <= part.end && part.end <= length;
}

void check_slice(const TableConfig& table, const TableSlice& slice, int64_t n_ranks) {
  SW_CHECK_VALUE(slice.rank >= 0 && slice.rank < n_ranks,
                 "[EmbeddingPlan] table \"{}\" has slice {}, but there are {} ranks. Give a rank below that.",
                 table.name, box_text(slice), n_ranks);
  SW_CHECK_VALUE(is_within(slice.rows, table.n_rows) && is_within(slice.columns, table.n_columns),
                 "[EmbeddingPlan] slice {} is not within table \"{}\" of [{}, {}]. Give rows and columns that it has.",
                 box_text(slice), table.name, table.n_rows, table.n_columns);
}

bool overlap(const TableSlice& a, const TableSlice& b) {
  const auto meet = [](Interval x, Interval y) { return std::max(x.begin, y.begin) < std::min(x.end, y.end); };
  return meet(a.rows, b.rows) && meet(a.columns, b.columns);
}

/// Checks that slices, sorted by rows, then columns, cover the table exactly once: none overlaps another, and together they have all its elements.
void check_tiling(const TableConfig& table, const std::vector<TableSlice>& slices) {
  int64_t n_elements = 0;
  std::set<int64_t> ranks;
  // A sweep over rows: a slice can only overlap slices that began before it and have not ended.
  std::vector<const TableSlice*> open;
  for (const TableSlice& slice : slices) {
    SW_CHECK_VALUE(ranks.insert(slice.rank).second,
                   "[EmbeddingPlan] table \"{}\" has two slices on rank {}. Merge them into one.", table.name,
                   slice.rank);
    std::erase_if(open, [&](const TableSlice* other) { return other->rows.end <= slice.rows.begin; });
    for (const TableSlice* other : open)
      SW_CHECK_VALUE(!overlap(*other, slice),
                     "[EmbeddingPlan] slices {} and {} of table \"{}\" overlap. Give each element to one rank.",
                     box_text(*other), box_text(slice), table.name);
    if (slice.rows.length() > 0) open.push_back(&slice);
    n_elements += slice.rows.length() * slice.columns.length();
  }
  SW_CHECK_VALUE(
      n_elements == table.n_elements(),
      "[EmbeddingPlan] the slices of table \"{}\" have {} of its {} elements. Give slices that cover the whole table.",
      table.name, n_elements, table.n_elements());
}

/// Index of the group of these slices; adds a group if there is none.
size_t group_index(std::vector<EmbeddingGroup>& groups, const EmbeddingGroup& wanted) {
  for (size_t i = 0; i < groups.size(); ++i)
    if (groups[i].is_replicated == wanted.is_replicated && groups[i].n_columns == wanted.n_columns &&
        groups[i].combiner == wanted.combiner && groups[i].dtype == wanted.dtype)
      return i;
  groups.push_back(wanted);
  return groups.size() - 1;
}

void enter(std::vector<EmbeddingGroup>& groups, const TableConfig& table, bool is_replicated, TableSlice& slice) {
  slice.group = group_index(groups, {is_replicated, slice.columns.length(), table.dtype, table.combiner, 0});
  slice.first_row = groups[slice.group].n_rows;
  groups[slice.group].n_rows += slice.rows.length();
}

std::vector<TableSlice> copy_of(const SliceList& slices) { return {slices.begin(), slices.end()}; }

}  // namespace

void complete_slices(const std::vector<TableConfig>& tables, int64_t n_ranks, std::vector<TablePlan>& table_plans) {
  TORCH_INTERNAL_ASSERT(table_plans.size() == tables.size(), "plans of ", table_plans.size(), " tables");
  for (size_t t = 0; t < tables.size(); ++t) {
    const TableConfig& table = tables[t];
    TablePlan& plan = table_plans[t];
    TableSlice whole{t, 0, {0, table.n_rows}, {0, table.n_columns}};
    if (plan.treatment == Treatment::kReplicated) {
      for (const TableSlice& slice : plan.slices)
        SW_CHECK_VALUE(
            slice.rows == whole.rows && slice.columns == whole.columns,
            "[EmbeddingPlan] table \"{}\" is replicated, but slice {} is not the whole of it. Leave its slices out.",
            table.name, box_text(slice));
      plan.slices = SliceList::on_every_rank(whole, n_ranks);
      continue;
    }
    std::vector<TableSlice> slices = copy_of(plan.slices);
    if (slices.empty() && plan.treatment == Treatment::kRowParallel)
      for (whole.rank = 0; whole.rank < n_ranks; ++whole.rank) {
        whole.rows = balanced_part(table.n_rows, n_ranks, whole.rank);
        slices.push_back(whole);
      }
    for (TableSlice& slice : slices) {
      check_slice(table, slice, n_ranks);
      slice.table = t;
    }
    std::ranges::stable_sort(slices, [](const TableSlice& a, const TableSlice& b) {
      return std::pair(a.rows.begin, a.columns.begin) < std::pair(b.rows.begin, b.columns.begin);
    });
    check_tiling(table, slices);
    plan.slices = std::move(slices);
  }
}

std::vector<RankEmbeddings> group_slices(const std::vector<TableConfig>& tables, int64_t n_ranks,
                                         std::vector<TablePlan>& table_plans) {
  std::vector<EmbeddingGroup> replicated;
  for (size_t t = 0; t < tables.size(); ++t)
    if (table_plans[t].treatment == Treatment::kReplicated) {
      TableSlice slice = table_plans[t].slices.front();
      enter(replicated, tables[t], true, slice);
      table_plans[t].slices = SliceList::on_every_rank(slice, n_ranks);
    }
  std::vector<RankEmbeddings> ranks(static_cast<size_t>(n_ranks), {replicated, {}, {}});
  for (size_t t = 0; t < tables.size(); ++t) {
    if (table_plans[t].treatment == Treatment::kReplicated) continue;
    std::vector<TableSlice> slices = copy_of(table_plans[t].slices);
    for (size_t i = 0; i < slices.size(); ++i) {
      RankEmbeddings& rank = ranks[slices[i].rank];
      enter(rank.groups, tables[t], false, slices[i]);
      rank.sharded.emplace_back(t, i);
    }
    table_plans[t].slices = std::move(slices);
  }
  return ranks;
}

std::vector<RankLoad> rank_loads(const LoadModel& model, const std::vector<TablePlan>& table_plans) {
  RankLoad common;
  std::vector<RankLoad> loads(static_cast<size_t>(model.n_ranks()));
  bool any_replicated = false, any_sharded = false;
  double asked_bytes = 0;  // bytes of one rank's requests to all slices, if all were on other ranks
  const auto n_ranks = static_cast<double>(model.n_ranks());
  for (size_t t = 0; t < table_plans.size(); ++t) {
    const TableConfig& table = model.tables()[t];
    if (table_plans[t].treatment == Treatment::kReplicated) {
      any_replicated = true;
      common += {model.weight_bytes(t, table.n_rows, table.n_columns), model.state_bytes(table.n_rows, table.n_columns),
                 model.replicated_lookups(t), 2 * model.replicated_bytes(t), model.replicated_seconds(t)};
      continue;
    }
    any_sharded = true;
    for (const TableSlice& slice : table_plans[t].slices) {
      const int64_t n_rows = slice.rows.length(), n_columns = slice.columns.length();
      // All ranks request equally many bytes from a slice, so one request is 1 / (n_ranks - 1) of the bytes that the slice serves.
      const double served = model.served_bytes(t, slice.rows, n_columns);
      const double per_asker = model.n_ranks() > 1 ? served / (n_ranks - 1) : 0;
      loads[slice.rank] +=
          {model.weight_bytes(t, n_rows, n_columns), model.state_bytes(n_rows, n_columns), model.lookups(t, slice.rows),
           served - per_asker, model.slice_seconds(t, slice.rows, n_columns)};
      asked_bytes += per_asker;
    }
  }
  common.seconds += model.fixed_seconds(any_replicated, any_sharded);
  common.exchange_bytes += asked_bytes;
  for (RankLoad& load : loads) load += common;
  return loads;
}

}  // namespace detail
}  // namespace shardwise
