// ops/support/planned_values.h: the values that operators on meta are planned for, where messages depend on values that meta tensors do not have.
//
// The n ids of a rank are spread evenly over the N rows of a table: id k is row k * N / n, rounded down. Choices of experts go round: choice k
// is of expert k mod N. Rows of groups are spread evenly over the groups.
//
//   4 ids, 10 rows:   0 2 5 7; rows [0, 3) on the first of three ranks have two of them
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstdint>

namespace shardwise {

/// The number of different ids, among `n_ids` of a table of `n_rows` rows, that name a row in [0, row).
inline int64_t planned_ids_below(int64_t row, int64_t n_ids, int64_t n_rows) {
  if (n_ids >= n_rows) return row;
  return n_rows == 0 ? 0 : (n_ids * row + n_rows - 1) / n_rows;
}

/// The `n` ids, int64 on the CPU.
inline at::Tensor planned_ids(int64_t n, int64_t n_rows) {
  return at::arange(n, at::kLong).mul_(n_rows).floor_divide_(std::max<int64_t>(n, 1));
}

/// Where `n` bags of equal lengths, of `n_ids` ids in all, begin, and where the last one ends: [n + 1] int64 on the CPU.
inline at::Tensor planned_offsets(int64_t n, int64_t n_ids) {
  return at::arange(n + 1, at::kLong).mul_(n_ids).floor_divide_(std::max<int64_t>(n, 1));
}

/// The first of `n` rows that belongs to `group`: groups are equal, but the first ones have one row more if rows are left.
inline int64_t planned_begin(int64_t group, int64_t n, int64_t n_groups) {
  return n_groups == 0 ? 0 : group * (n / n_groups) + std::min(group, n % n_groups);
}

/// The expert of each of `n` choices, int64 on the CPU.
inline at::Tensor planned_experts(int64_t n, int64_t n_experts) {
  return at::arange(n, at::kLong).remainder_(std::max<int64_t>(n_experts, 1));
}

}  // namespace shardwise
