#include "wrappers/embedding_plan/slice_rules.h"

#include "text/table.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

namespace shardwise::detail {
namespace {

int64_t most_slices(const TableConfig& table, int64_t n_ranks) { return std::min(n_ranks, table.n_columns); }

/// Halves the largest slices until there are `n_ranks` of them, or none can be halved.
void halve_largest(const std::vector<TableConfig>& tables, const std::vector<size_t>& members, int64_t n_ranks,
                   std::vector<Slicing>& slicings) {
  // Largest slice first, then the first table. A table's power of two may exceed the number of its slices.
  using Entry = std::tuple<double, int64_t, size_t>;  // elements of a slice, minus the table's index, power of two
  std::priority_queue<Entry> largest;
  for (const size_t t : members)
    largest.emplace(static_cast<double>(tables[t].n_elements()), -static_cast<int64_t>(t), 1);
  auto n_slices = static_cast<int64_t>(members.size());
  while (n_slices < n_ranks && !largest.empty()) {
    const auto [elements, minus_index, power] = largest.top();
    largest.pop();
    const auto t = static_cast<size_t>(-minus_index);
    Slicing& slicing = slicings[t];
    const int64_t most = most_slices(tables[t], n_ranks);
    if (slicing.n_slices >= most) continue;
    const int64_t next = std::min(static_cast<int64_t>(power) * 2, most);
    n_slices += next - slicing.n_slices;
    slicing.n_slices = next;
    largest.emplace(elements / 2, minus_index, power * 2);
  }
}

int64_t total_slices(const std::vector<size_t>& members, const std::vector<Slicing>& slicings) {
  int64_t n = 0;
  for (const size_t t : members) n += slicings[t].n_slices;
  return n;
}

/// The largest column threshold that gives enough slices; 0 if there is none.
int64_t sufficient_threshold(const std::vector<TableConfig>& tables, const std::vector<size_t>& members,
                             int64_t n_ranks) {
  const auto suffices = [&](int64_t threshold) {
    int64_t n = 0;
    for (const size_t t : members) n += n_column_slices(tables[t], threshold, n_ranks);
    return n >= n_ranks;
  };
  if (!suffices(1)) return 0;
  int64_t good = 1, bad = std::numeric_limits<int64_t>::max() / 2;  // fewer slices at higher thresholds
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (suffices(middle) ? good : bad) = middle;
  }
  return good;
}

[[noreturn]] void refuse_too_few(const std::vector<TableConfig>& tables, const std::vector<size_t>& members,
                                 int64_t n_slices, int64_t n_ranks) {
  const std::string what =
      fmt::format("[plan_embeddings] {} table-parallel tables have {} slices, fewer than the {} ranks. ",
                  members.size(), n_slices, n_ranks);
  const int64_t enough = sufficient_threshold(tables, members, n_ranks);
  TORCH_CHECK_VALUE(
      enough == 0,
      what + fmt::format("Lower column_slice_threshold to at most {} elements, or leave it out.", with_commas(enough)));
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const size_t t : members) least = std::min(least, tables[t].n_elements());
  TORCH_CHECK_VALUE(false, what + fmt::format("Their columns cannot be sliced further: lower row_slice_threshold to at "
                                              "most {} elements, which shards them by rows, or use fewer ranks.",
                                              with_commas(least)));
}

std::string reason_of(const TableConfig& table, const Slicing& slicing, const EmbeddingPlanOptions& options) {
  const std::string elements = with_commas(table.n_elements()) + " elements";
  switch (slicing.treatment) {
    case Treatment::kReplicated:
      return fmt::format("{} are at most data_parallel_threshold {}", elements,
                         with_commas(*options.data_parallel_threshold));
    case Treatment::kRowParallel:
      return fmt::format("{} are at least row_slice_threshold {}", elements, with_commas(*options.row_slice_threshold));
    case Treatment::kTableParallel:
      break;
  }
  if (slicing.n_slices == 1)
    return options.column_slice_threshold ? fmt::format("{} are at most column_slice_threshold {}", elements,
                                                        with_commas(*options.column_slice_threshold))
                                          : fmt::format("{}, and there are slices enough for all ranks", elements);
  return options.column_slice_threshold
             ? fmt::format("{} slices of columns: {} are more than column_slice_threshold {}", slicing.n_slices,
                           elements, with_commas(*options.column_slice_threshold))
             : fmt::format("{} slices of columns, so that each rank has a slice", slicing.n_slices);
}

}  // namespace

Treatment treatment_by_thresholds(const TableConfig& table, const EmbeddingPlanOptions& options) {
  const int64_t n_elements = table.n_elements();
  if (options.data_parallel_threshold && n_elements <= *options.data_parallel_threshold) return Treatment::kReplicated;
  if (options.row_slice_threshold && n_elements >= *options.row_slice_threshold) return Treatment::kRowParallel;
  return Treatment::kTableParallel;
}

int64_t n_column_slices(const TableConfig& table, int64_t threshold, int64_t n_ranks) {
  const int64_t most = most_slices(table, n_ranks);
  int64_t power = 1;
  // size / power > threshold, without the fraction
  while (power < most && (table.n_elements() + power - 1) / power > threshold) power *= 2;
  return std::min(power, most);
}

std::vector<Slicing> slice_by_thresholds(const std::vector<TableConfig>& tables, int64_t n_ranks,
                                         const EmbeddingPlanOptions& options) {
  std::vector<Slicing> slicings(tables.size());
  std::vector<size_t> members;
  for (size_t t = 0; t < tables.size(); ++t) {
    slicings[t].treatment = treatment_by_thresholds(tables[t], options);
    if (slicings[t].treatment == Treatment::kTableParallel) members.push_back(t);
  }
  if (options.column_slice_threshold) {
    for (const size_t t : members)
      slicings[t].n_slices = n_column_slices(tables[t], *options.column_slice_threshold, n_ranks);
  } else {
    halve_largest(tables, members, n_ranks, slicings);
  }
  const int64_t n_slices = total_slices(members, slicings);
  if (!members.empty() && n_slices < n_ranks) refuse_too_few(tables, members, n_slices, n_ranks);
  for (size_t t = 0; t < tables.size(); ++t) slicings[t].reason = reason_of(tables[t], slicings[t], options);
  return slicings;
}

}  // namespace shardwise::detail
