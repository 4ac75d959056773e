#include "ops/embedding/row_ranges.h"

#include "runtime/comm/collectives.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <limits>

namespace shardwise {
namespace {

constexpr int64_t kRowsAtOnce = 1 << 16;

}  // namespace

at::Tensor range_of_rows(const at::Tensor& piece) {
  const int64_t n = piece.size(0);
  at::Tensor range = at::full({n, 2}, std::numeric_limits<float>::infinity(), piece.options().dtype(at::kFloat));
  if (piece.size(1) == 0) return range;
  for (int64_t begin = 0; begin < n; begin += kRowsAtOnce) {
    const int64_t n_rows = std::min(kRowsAtOnce, n - begin);
    const at::Tensor rows = piece.narrow(0, begin, n_rows);
    range.narrow(0, begin, n_rows).copy_(at::stack({rows.amin({1}), rows.amax({1}).neg()}, 1));
  }
  return range;
}

int64_t first_unbounded_row(const Spec& table, const std::vector<at::Tensor>& numbers) {
  int64_t first = table.sizes()[0];
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (table.boxes()[i].sizes[1] == 0) continue;
    const at::Tensor bad = numbers[i].isfinite().logical_not().any(1).nonzero();
    if (bad.numel() > 0) first = std::min(first, table.boxes()[i].offsets[0] + bad[0].item<int64_t>());
  }
  if (!table.is_member()) return first;
  const at::Tensor of_all = at::full({1}, first, at::TensorOptions().dtype(at::kLong).device(table.mesh()->device()));
  all_reduce(*table.mesh()->group(), of_all, Reduce::kMin);
  return of_all.item<int64_t>();
}

}  // namespace shardwise
