#include "wrappers/distributed_embedding/row_requests.h"

#include "ops/embedding/id_check.h"
#include "text/check.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

std::vector<std::vector<int64_t>> no_counts(const TableLanes& lanes) {
  return {lanes.lanes.size(), std::vector<int64_t>(static_cast<size_t>(lanes.n_ranks()))};
}

/// Concatenates the ids of all features of a table.
at::Tensor ids_of(const TableRequests& table, const std::vector<FeatureIds>& features) {
  if (table.features.size() == 1) return features[table.features[0]].ids;
  std::vector<at::Tensor> parts;
  for (const size_t f : table.features) parts.push_back(features[f].ids);
  return at::cat(parts);
}

}  // namespace

void check_range(const Feature& feature, const at::Tensor& ids, const LayerTable& table) {
  const int64_t n_rows = table.spec->sizes()[0];
  IdBounds bounds;
  bounds.add(ids);
  const auto worst = bounds.worst(n_rows);
  SW_CHECK_INDEX(!worst, "[{}] feature {} has id {}: table {} has {} rows. Use ids in [0, {}).", kLayer, feature.name,
                 worst.value_or(0), table.name, n_rows, n_rows);
}

size_t TableRequests::place_of(size_t feature) const {
  return static_cast<size_t>(std::ranges::find(features, feature) - features.begin());
}

const TableRequests* RowRequests::of_table(size_t table) const {
  return places_[table] == -1 ? nullptr : &tables_[static_cast<size_t>(places_[table])];
}

RowRequests::RowRequests(const TableLanes& lanes) : counts_(no_counts(lanes)) {}

RowRequests::RowRequests(const TableLanes& lanes, const std::vector<Feature>& features,
                         const std::vector<std::vector<size_t>>& features_of, const std::vector<FeatureIds>& ids)
    : places_(lanes.tables.size(), -1), counts_(no_counts(lanes)) {
  for (size_t t = 0; t < lanes.tables.size(); ++t) {
    const LayerTable& table = lanes.tables[t];
    if (table.is_replicated || features_of[t].empty()) continue;
    TableRequests own{t, features_of[t], {0}, {}, {}};
    for (const size_t f : own.features) own.first_ids.push_back(own.first_ids.back() + ids[f].ids.numel());
    own.groups = group_ids(ids_of(own, ids), 0, table.spec->sizes()[0], /*skipped=*/-1, /*with_group_of=*/true);
    if (own.groups.starts[own.groups.n()].item<int64_t>() < own.first_ids.back())
      for (const size_t f : own.features) check_range(features[f], ids[f].ids, table);
    const auto* rows = own.groups.rows.const_data_ptr<int64_t>();
    const auto first_from = [&](int64_t row) { return std::lower_bound(rows, rows + own.groups.n(), row) - rows; };
    for (size_t s = 0; s < table.slices.size(); ++s) {
      const LaneSlice& slice = table.slices[s];
      RowRequest request{s, first_from(slice.rows.begin), first_from(slice.rows.end), 0};
      int64_t& count = counts_[slice.lane][static_cast<size_t>(slice.rank)];
      request.arrival = count;  // relative to its rank's first arrival, for now
      count += request.n();
      own.requests.push_back(request);
    }
    places_[t] = static_cast<int64_t>(tables_.size());
    tables_.push_back(std::move(own));
  }
  for (TableRequests& table : tables_)
    for (RowRequest& request : table.requests) {
      const LaneSlice& slice = lanes.tables[table.table].slices[request.slice];
      request.arrival += first_from(slice.lane, slice.rank);
    }
}

int64_t RowRequests::first_from(size_t lane, int64_t rank) const {
  return std::accumulate(counts_[lane].begin(), counts_[lane].begin() + rank, int64_t{0});
}

int64_t RowRequests::n_arrivals(size_t lane) const {
  return std::accumulate(counts_[lane].begin(), counts_[lane].end(), int64_t{0});
}

template <class Word>
void RowRequests::write_rows(const TableLanes& lanes, int64_t rank, Word* words) const {
  std::vector<Word*> next;  // by lane
  for (size_t lane = 0; lane < lanes.lanes.size(); ++lane) {
    next.push_back(words);
    words += n_from(lane, rank);
  }
  for (const TableRequests& table : tables_) {
    const auto* rows = table.groups.rows.const_data_ptr<int64_t>();
    for (const RowRequest& request : table.requests) {
      const LaneSlice& slice = lanes.tables[table.table].slices[request.slice];
      if (slice.rank != rank) continue;
      const int64_t shift = slice.first_row - slice.rows.begin;
      next[slice.lane] = std::transform(rows + request.begin, rows + request.end, next[slice.lane],
                                        [&](int64_t row) { return static_cast<Word>(row + shift); });
    }
  }
}
template void RowRequests::write_rows(const TableLanes&, int64_t, int32_t*) const;
template void RowRequests::write_rows(const TableLanes&, int64_t, int64_t*) const;

at::Tensor RowRequests::arrivals(const TableLanes& lanes, const TableRequests& table, size_t feature,
                                 size_t part) const {
  const size_t place = table.place_of(feature);
  const int64_t begin = table.first_ids[place], n = table.first_ids[place + 1] - begin;
  std::vector<int64_t> of_groups(static_cast<size_t>(table.groups.n()));
  for (const RowRequest& request : table.requests)
    if (lanes.tables[table.table].slices[request.slice].part == part)
      std::iota(of_groups.begin() + request.begin, of_groups.begin() + request.end, request.arrival);
  const at::Tensor result = at::empty({n}, at::kLong);
  const auto* group_of = table.groups.group_of.const_data_ptr<int64_t>() + begin;
  auto* values = result.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) values[i] = of_groups[static_cast<size_t>(group_of[i])];
  return result;
}

}  // namespace shardwise
