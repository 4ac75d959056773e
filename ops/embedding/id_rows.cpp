#include "ops/embedding/id_rows.h"

#include "ops/embedding/kernel_launch.h"
#include "ops/embedding/kernel_views.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>
#include <vector>

namespace shardwise {
namespace {

constexpr int64_t kBytesPerSearch = 64;  // a cache line, about

}  // namespace

UniqueIds unique_ids(const at::Tensor& ids) {
  const int64_t n = ids.numel();
  std::vector<int64_t> slots(kernels::slots_for(n), -1);
  const at::Tensor unique = at::empty({n}, ids.options()), counts = at::empty_like(unique),
                   place_of = at::empty_like(unique);
  const int64_t n_unique =
      kernels::unique_ids(numbers_of(ids), n, slots.data(), unique.mutable_data_ptr<int64_t>(),
                          place_of.mutable_data_ptr<int64_t>(), counts.mutable_data_ptr<int64_t>());
  return {{unique.narrow(0, 0, n_unique), counts.narrow(0, 0, n_unique)}, place_of};
}

IdRows::IdRows(kernels::IdBuckets buckets, Interval own, int64_t default_row)
    : buckets_(buckets),
      own_(own),
      rows_{buckets.first_row(own.begin), buckets.first_row(own.end)},
      default_row_(default_row),
      slots_(kernels::slots_for(rows_.length()), -1),
      arrival_of_(own.length(), -1) {}

kernels::IdMap IdRows::map(const IdRowState& state) const {
  return {slots_.data(), static_cast<int64_t>(slots_.size()), numbers_of(state.ids)};
}

int64_t IdRows::read(const IdRowState& state) {
  std::ranges::fill(slots_, -1);
  const kernels::IdMap map = this->map(state);
  const auto* last_used = numbers_of(state.last_used);
  for (int64_t row = 0; row < rows_.length(); ++row) {
    if (last_used[row] < 0) continue;
    const int64_t of_table = rows_.begin + row, id = map.ids[row];
    if (of_table == default_row_ || buckets_.bucket_of(id) != buckets_.bucket_of_row(of_table) ||
        kernels::find(map, id) >= 0)
      return of_table;
    insert(map, row);
  }
  return -1;
}

at::Tensor IdRows::find(const IdRowState& state, const at::Tensor& ids, int64_t missing) const {
  at::Tensor rows = at::empty({ids.numel()}, ids.options());
  auto* row_of = rows.mutable_data_ptr<int64_t>();
  const auto* id = numbers_of(ids);
  const kernels::IdMap map = this->map(state);
  share_out(ids.numel(), kBytesPerSearch, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = kernels::find(map, id[i]);
      row_of[i] = row < 0 ? missing : rows_.begin + row;
    }
  });
  return rows;
}

IdAssignment IdRows::assign(const IdRowState& state, const at::Tensor& ids) const {
  const int64_t n = ids.numel();
  const auto *id = numbers_of(ids), *last_used = numbers_of(state.last_used);
  IdAssignment assignment;
  assignment.rows.resize(n);
  const kernels::IdMap map = this->map(state);
  std::vector<std::tuple<int64_t, int64_t, int64_t>>
      newcomers;  // bucket, id, place: sorted, so that the order of ids does not matter
  for (int64_t i = 0; i < n; ++i) {
    assignment.rows[i] = kernels::find(map, id[i]);
    if (assignment.rows[i] < 0) newcomers.emplace_back(buckets_.bucket_of(id[i]), id[i], i);
  }
  std::ranges::sort(newcomers);
  const auto n_new = static_cast<int64_t>(newcomers.size());
  std::vector<Arrival> arrivals;
  for (int64_t k = 0; k < n_new; ++k) {
    const int64_t bucket = std::get<0>(newcomers[k]);
    if (!arrivals.empty() && arrivals.back().bucket == bucket) continue;
    arrival_of_[bucket - own_.begin] = static_cast<int32_t>(arrivals.size());
    arrivals.push_back({bucket, k, {}});
  }
  for (int64_t i = 0; i < n && !arrivals.empty(); ++i) {
    const int64_t row = assignment.rows[i];
    if (row < 0) continue;
    const int32_t arrival = arrival_of_[buckets_.bucket_of_row(rows_.begin + row) - own_.begin];
    if (arrival >= 0) arrivals[arrival].kept.push_back(row);
  }
  for (size_t a = 0; a < arrivals.size(); ++a) {
    Arrival& arrival = arrivals[a];
    arrival_of_[arrival.bucket - own_.begin] = -1;
    const int64_t end = a + 1 < arrivals.size() ? arrivals[a + 1].begin : n_new;
    const int64_t n_ids = end - arrival.begin + static_cast<int64_t>(arrival.kept.size());
    if (n_ids > capacity(arrival.bucket)) {
      if (n_ids > assignment.n_ids_there) {
        assignment.full_bucket = arrival.bucket;
        assignment.n_ids_there = n_ids;
      }
      continue;
    }
    const std::vector<int64_t> rows = oldest_rows(state, arrival, end - arrival.begin);
    for (int64_t k = arrival.begin; k < end; ++k) {
      const auto& [bucket, new_id, place] = newcomers[k];
      const int64_t row = rows[k - arrival.begin];
      assignment.rows[place] = row;
      assignment.newcomers.push_back(place);
      if (last_used[row] >= 0) assignment.reassigned.push_back({rows_.begin + row, new_id});
    }
  }
  return assignment;
}

int64_t IdRows::capacity(int64_t bucket) const {
  const Interval rows{buckets_.first_row(bucket), buckets_.first_row(bucket + 1)};
  return rows.length() - static_cast<int64_t>(rows.begin <= default_row_ && default_row_ < rows.end);
}

std::vector<int64_t> IdRows::oldest_rows(const IdRowState& state, Arrival& arrival, int64_t n) const {
  const auto* last_used = numbers_of(state.last_used);
  std::ranges::sort(arrival.kept);
  std::vector<std::pair<int64_t, int64_t>> by_use;  // rows never used come first
  auto kept = arrival.kept.begin();
  const int64_t end = buckets_.first_row(arrival.bucket + 1);
  for (int64_t of_table = buckets_.first_row(arrival.bucket); of_table < end; ++of_table) {
    const int64_t row = of_table - rows_.begin;
    if (kept != arrival.kept.end() && *kept == row)
      ++kept;
    else if (of_table != default_row_)
      by_use.emplace_back(last_used[row], row);
  }
  std::ranges::partial_sort(by_use, by_use.begin() + n);
  std::vector<int64_t> rows(n);
  for (int64_t i = 0; i < n; ++i) rows[i] = by_use[i].second;
  return rows;
}

void IdRows::commit(const IdRowState& state, const IdUses& uses, int64_t step, const IdAssignment& assignment) {
  const kernels::IdMap map = this->map(state);
  const auto *id = numbers_of(uses.ids), *count = numbers_of(uses.counts);
  auto* ids = state.ids.mutable_data_ptr<int64_t>();
  auto* last_used = state.last_used.mutable_data_ptr<int64_t>();
  auto* counts = state.counts.mutable_data_ptr<int64_t>();
  for (const int64_t place : assignment.newcomers) {
    const int64_t row = assignment.rows[place];
    if (last_used[row] >= 0) erase(map, row);
    ids[row] = id[place];
    counts[row] = 0;
    insert(map, row);
  }
  for (size_t i = 0; i < assignment.rows.size(); ++i) {
    last_used[assignment.rows[i]] = step;
    counts[assignment.rows[i]] += count[i];
  }
}

namespace {

/// A number in [0, 1) with 53 random bits.
double fraction_of(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

double number_of(int64_t id, int64_t column, const RowFill& fill) {
  const auto key = static_cast<int64_t>(kernels::mixed(id, fill.seed));
  const double first = fraction_of(kernels::mixed(key, 2 * column));
  if (fill.values == Fill::kUniform) return fill.scale * (2 * first - 1);
  const double second = fraction_of(kernels::mixed(key, 2 * column + 1));
  return fill.scale * std::sqrt(-2 * std::log1p(-first)) * std::cos(2 * std::numbers::pi * second);
}

}  // namespace

at::Tensor filled_rows(c10::ArrayRef<int64_t> ids, Interval columns, const RowFill& fill,
                       const at::TensorOptions& options) {
  const Dims sizes{static_cast<int64_t>(ids.size()), columns.length()};
  if (fill.values == Fill::kConstant) return at::full(sizes, fill.scale, options);
  const at::Tensor values = at::empty(sizes, at::kDouble);
  auto* value = values.mutable_data_ptr<double>();
  for (const int64_t id : ids)
    for (int64_t column = columns.begin; column < columns.end; ++column) *value++ = number_of(id, column, fill);
  return values.to(options);
}

}  // namespace shardwise
