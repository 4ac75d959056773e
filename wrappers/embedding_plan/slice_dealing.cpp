#include "wrappers/embedding_plan/slice_dealing.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>

namespace shardwise::detail {
namespace {

/// Indices of the slices, by decreasing size; equal ones in their own order.
template <class Size>
std::vector<size_t> by_size(const std::vector<LooseSlice>& slices, const Size& size) {
  std::vector<size_t> order(slices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return size(slices[i]); });
  return order;
}

std::vector<int64_t> deal_to_lightest(std::vector<LooseSlice> slices, int64_t n_ranks) {
  for (LooseSlice& slice : slices) slice.seconds = static_cast<double>(slice.n_bytes);
  return pack(slices, Ranks(n_ranks, std::numeric_limits<double>::infinity()), 1)->ranks;
}

}  // namespace

std::vector<LooseSlice> loose_slices(const LoadModel& model, const std::vector<Slicing>& slicings) {
  std::vector<LooseSlice> slices;
  for (size_t t = 0; t < slicings.size(); ++t) {
    if (slicings[t].treatment != Treatment::kTableParallel) continue;
    const TableConfig& table = model.tables()[t];
    const auto seconds = model.slice_seconds(t, {0, table.n_rows});
    for (int64_t i = 0; i < slicings[t].n_slices; ++i) {
      const int64_t n_columns = balanced_part(table.n_columns, slicings[t].n_slices, i).length();
      slices.push_back({t, n_columns, model.slice_bytes(t, table.n_rows, n_columns), seconds.of(n_columns)});
    }
  }
  return slices;
}

std::vector<int64_t> deal(const std::vector<LooseSlice>& slices, int64_t n_ranks, EmbeddingStrategy strategy) {
  if (strategy == EmbeddingStrategy::kMemoryOptimized) return deal_to_lightest(slices, n_ranks);
  std::vector<int64_t> ranks(slices.size());
  if (strategy == EmbeddingStrategy::kBasic) {
    for (size_t i = 0; i < slices.size(); ++i) ranks[i] = static_cast<int64_t>(i) % n_ranks;
    return ranks;
  }
  int64_t turn = 0;  // first forward, then backward
  for (const size_t i : by_size(slices, [](const LooseSlice& slice) { return slice.n_bytes; })) {
    const int64_t at = turn++ % (2 * n_ranks);
    ranks[i] = at < n_ranks ? at : 2 * n_ranks - 1 - at;
  }
  return ranks;
}

std::optional<Packed> pack(const std::vector<LooseSlice>& slices, Ranks ranks, double target) {
  const double room = std::max(ranks.memory - *std::ranges::max_element(ranks.n_bytes), 1.0);
  const auto share = [&](const LooseSlice& slice) {
    return std::max(slice.seconds / target, static_cast<double>(slice.n_bytes) / room);  // 0 of endless room
  };
  using Entry = std::pair<double, int64_t>;  // seconds, rank: the lower rank first among equals
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> first;
  for (size_t rank = 0; rank < ranks.seconds.size(); ++rank)
    first.emplace(ranks.seconds[rank], static_cast<int64_t>(rank));
  Packed packed{std::vector<int64_t>(slices.size())};
  for (const size_t i : by_size(slices, share)) {
    const auto n_bytes = static_cast<double>(slices[i].n_bytes);
    std::vector<Entry> full;  // for this slice
    for (; !first.empty() && ranks.n_bytes[first.top().second] + n_bytes > ranks.memory; first.pop())
      full.push_back(first.top());
    if (first.empty()) return {};
    const int64_t rank = packed.ranks[i] = first.top().second;
    first.pop();
    ranks.n_bytes[rank] += n_bytes;
    first.emplace(ranks.seconds[rank] += slices[i].seconds, rank);
    for (const Entry& entry : full) first.push(entry);
  }
  const auto last = std::ranges::max_element(ranks.seconds);
  packed.last_rank = last - ranks.seconds.begin();
  packed.seconds = *last;
  return packed;
}

std::vector<TablePlan> place(const std::vector<TableConfig>& tables, const std::vector<Slicing>& slicings,
                             const std::vector<LooseSlice>& slices, const std::vector<int64_t>& ranks,
                             int64_t n_ranks) {
  std::vector<TablePlan> plans(tables.size());
  size_t next = 0;  // position in the loose slices, which are in the order of tables
  for (size_t t = 0; t < tables.size(); ++t) {
    const TableConfig& table = tables[t];
    plans[t].treatment = slicings[t].treatment;
    plans[t].reason = slicings[t].reason;
    TableSlice whole{t, 0, {0, table.n_rows}, {0, table.n_columns}};
    std::vector<TableSlice> placed;
    switch (slicings[t].treatment) {
      case Treatment::kReplicated:
        plans[t].slices = SliceList::on_every_rank(whole, n_ranks);
        continue;
      case Treatment::kRowParallel:
        for (whole.rank = 0; whole.rank < n_ranks; ++whole.rank) {
          whole.rows = balanced_part(table.n_rows, n_ranks, whole.rank);
          placed.push_back(whole);
        }
        break;
      case Treatment::kTableParallel:
        for (; next < slices.size() && slices[next].table == t; ++next) {
          auto met = std::ranges::find(placed, ranks[next], &TableSlice::rank);
          if (met == placed.end()) met = placed.insert(met, {t, ranks[next], whole.rows, {0, 0}});
          met->columns.end += slices[next].n_columns;
        }
        for (size_t i = 1; i < placed.size(); ++i) {
          const int64_t begin = placed[i - 1].columns.end;
          placed[i].columns = {begin, begin + placed[i].columns.length()};
        }
        break;
    }
    if (const int64_t n_merged = slicings[t].n_slices - static_cast<int64_t>(placed.size());
        n_merged > 0 && slicings[t].treatment == Treatment::kTableParallel)
      plans[t].reason += fmt::format("; {} of them {} merged with another on {} rank", n_merged,
                                     n_merged == 1 ? "is" : "are", n_merged == 1 ? "its" : "their");
    plans[t].slices = std::move(placed);
  }
  return plans;
}

}  // namespace shardwise::detail
