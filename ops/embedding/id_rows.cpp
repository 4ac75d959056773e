#include "ops/embedding/id_rows.h"

#include "ops/embedding/kernel_launch.h"
#include "ops/embedding/kernel_views.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace shardwise {
namespace {

constexpr int64_t kBytesPerSearch = 64;  // a cache line, about

}  // namespace

IdRows::IdRows(kernels::IdBuckets buckets, Interval own, int64_t default_row)
    : buckets_(buckets),
      own_(own),
      rows_{buckets.first_row(own.begin), buckets.first_row(own.end)},
      default_row_(default_row),
      slots_(kernels::slots_for(rows_.length()), -1) {}

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
  const auto* id = numbers_of(ids);
  IdAssignment assignment;
  assignment.rows.resize(n);
  const kernels::IdMap map = this->map(state);
  std::vector<std::pair<int64_t, int64_t>> by_bucket(n);  // and by place: ids ascend
  for (int64_t i = 0; i < n; ++i) {
    by_bucket[i] = {buckets_.bucket_of(id[i]), i};
    assignment.rows[i] = kernels::find(map, id[i]);
  }
  std::ranges::sort(by_bucket);
  std::vector<int64_t> newcomers, kept;
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    const int64_t bucket = by_bucket[begin].first;
    newcomers.clear();
    kept.clear();
    for (; end < n && by_bucket[end].first == bucket; ++end) {
      const int64_t place = by_bucket[end].second, row = assignment.rows[place];
      if (row < 0)
        newcomers.push_back(place);
      else
        kept.push_back(row);
    }
    if (end - begin > capacity(bucket)) {
      if (end - begin > assignment.n_ids_there) {
        assignment.full_bucket = bucket;
        assignment.n_ids_there = end - begin;
      }
    } else if (!newcomers.empty()) {
      assign_bucket(state, bucket, kept, newcomers, assignment);
    }
  }
  for (const int64_t place : assignment.newcomers)
    if (state.last_used.const_data_ptr<int64_t>()[assignment.rows[place]] >= 0)
      assignment.reassigned.push_back({rows_.begin + assignment.rows[place], id[place]});
  return assignment;
}

int64_t IdRows::capacity(int64_t bucket) const {
  const Interval rows{buckets_.first_row(bucket), buckets_.first_row(bucket + 1)};
  return rows.length() - static_cast<int64_t>(rows.begin <= default_row_ && default_row_ < rows.end);
}

void IdRows::assign_bucket(const IdRowState& state, int64_t bucket, std::vector<int64_t>& kept,
                           const std::vector<int64_t>& newcomers, IdAssignment& assignment) const {
  const auto* last_used = numbers_of(state.last_used);
  std::ranges::sort(kept);
  std::vector<std::pair<int64_t, int64_t>> by_use;  // rows never used come first
  for (int64_t of_table = buckets_.first_row(bucket); of_table < buckets_.first_row(bucket + 1); ++of_table) {
    const int64_t row = of_table - rows_.begin;
    if (of_table != default_row_ && !std::ranges::binary_search(kept, row)) by_use.emplace_back(last_used[row], row);
  }
  std::ranges::partial_sort(by_use, by_use.begin() + static_cast<int64_t>(newcomers.size()));
  for (size_t i = 0; i < newcomers.size(); ++i) {
    assignment.rows[newcomers[i]] = by_use[i].second;
    assignment.newcomers.push_back(newcomers[i]);
  }
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

at::Tensor hashed_rows(const at::Tensor& ids, int64_t n_rows, int64_t seed) {
  const at::Tensor source = ids.to(at::kCPU, at::kLong).contiguous();
  at::Tensor rows = at::empty(ids.sizes(), source.options());
  const auto* id = numbers_of(source);
  auto* row = rows.mutable_data_ptr<int64_t>();
  share_out(ids.numel(), sizeof(int64_t), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      row[i] = static_cast<int64_t>(kernels::mixed(id[i], seed) % static_cast<uint64_t>(n_rows));
  });
  return rows.to(ids.device());
}

namespace {

/// In [0, 1), of 53 bits.
double fraction_of(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

double number_of(int64_t id, int64_t column, const RowFill& fill) {
  const auto key = static_cast<int64_t>(kernels::mixed(id, fill.seed));
  const double first = fraction_of(kernels::mixed(key, 2 * column));
  if (fill.kind == RowFill::Kind::kUniform) return fill.scale * (2 * first - 1);
  const double second = fraction_of(kernels::mixed(key, 2 * column + 1));
  return fill.scale * std::sqrt(-2 * std::log1p(-first)) * std::cos(2 * std::numbers::pi * second);
}

}  // namespace

at::Tensor filled_rows(c10::ArrayRef<int64_t> ids, Interval columns, const RowFill& fill,
                       const at::TensorOptions& options) {
  const Dims sizes{static_cast<int64_t>(ids.size()), columns.length()};
  if (fill.kind == RowFill::Kind::kConstant) return at::full(sizes, fill.scale, options);
  const at::Tensor values = at::empty(sizes, at::kDouble);
  auto* value = values.mutable_data_ptr<double>();
  for (const int64_t id : ids)
    for (int64_t column = columns.begin; column < columns.end; ++column) *value++ = number_of(id, column, fill);
  return values.to(options);
}

}  // namespace shardwise
