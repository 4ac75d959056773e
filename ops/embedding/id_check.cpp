#include "ops/embedding/id_check.h"

#include "ops/embedding/kernel_launch.h"
#include "ops/embedding/kernel_views.h"
#include "ops/embedding/row_kernels.h"
#include "ops/indexing/index_operand.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <mutex>

namespace shardwise {

void IdBounds::add(const at::Tensor& ids) {
  check_not_traced("embedding lookup");
  if (ids.numel() == 0 || ids.is_meta()) return;
  if (!ids.is_cpu()) {
    const auto [least, most] = at::aminmax(ids);
    const at::Tensor both = at::stack({least, most}).cpu();  // one wait for the device
    return add(both[0].item<int64_t>(), both[1].item<int64_t>());
  }
  const at::Tensor all_ids = ids.contiguous();
  const kernels::Ids all = ids_of(all_ids);
  std::mutex mutex;
  share_out(all.n, 8, [&](int64_t begin, int64_t end) {
    const kernels::IdRange part = kernels::range_of(all, begin, end);
    const std::lock_guard lock(mutex);
    add(part.lowest, part.highest);
  });
}

void IdBounds::add(int64_t other_lowest, int64_t other_highest) {
  lowest = std::min(lowest, other_lowest);
  highest = std::max(highest, other_highest);
}

std::optional<int64_t> IdBounds::worst(int64_t n_rows) const {
  if (lowest > highest || (lowest >= 0 && highest < n_rows)) return std::nullopt;
  const auto below = lowest < 0 ? uint64_t{0} - static_cast<uint64_t>(lowest) : 0;  // distance; unsigned for -2^63
  const auto above = highest >= n_rows ? static_cast<uint64_t>(highest - n_rows) + 1 : 0;
  return below > above ? lowest : highest;
}

void IdBounds::check(const char* op, int64_t n_rows) const {
  const auto id = worst(n_rows);
  SW_CHECK_INDEX(!id, "[{}] id {} is no row of the table: it has {} rows. Use ids in [0, {}).", op, id.value_or(0),
                 n_rows, n_rows);
}

void check_ids(const char* op, const at::Tensor& ids, int64_t n_rows) {
  const auto* impl = maybe_dtensor(ids);
  const Spec& spec = *impl->spec();
  if (!spec.is_member()) return;
  if (spec.mesh()->planned_type() == c10::kCUDA && (kHasCudaKernels || spec.mesh()->is_meta())) {
    for (const at::Tensor& piece : impl->shards()) assert_ids(piece, n_rows);
    return;
  }
  IdBounds bounds;
  for (const at::Tensor& piece : impl->shards()) bounds.add(piece);
  const auto [lowest, highest] = agreed_range(spec, {bounds.lowest, bounds.highest});
  IdBounds{lowest, highest}.check(op, n_rows);
}

}  // namespace shardwise
