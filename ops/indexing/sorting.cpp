// ops/indexing/sorting.cpp: sort and topk along a dim. sort moves the shard to another dim; for topk each rank sends
// its k candidates.
#include "ops/families.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/topk.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Throws the dense operator's errors for these arguments.
void check_topk(const at::Tensor& self, int64_t k, int64_t dim) {
  at::topk(at::empty(self.sizes(), self.options().device(at::kMeta)), k, dim);
}

struct Chosen {
  at::Tensor values, indices;
};

Chosen largest(const at::Tensor& values, int64_t k, int64_t dim, bool is_largest, bool is_sorted) {
  auto [chosen, indices] = at::topk(values, k, dim, is_largest, is_sorted);
  return {chosen, indices};
}

std::tuple<at::Tensor, at::Tensor> topk(const at::Tensor& self, int64_t k, int64_t dim, bool is_largest,
                                        bool is_sorted) {
  const DimPieces along = pieces_along(self, dim);
  check_topk(self, k, dim);
  std::vector<int64_t> n_candidates;
  int64_t n_all = 0;
  for (const Interval& interval : along.intervals) {
    n_candidates.push_back(std::min(k, interval.length()));
    n_all += n_candidates.back();
  }
  Shards values, indices;
  for (const at::Tensor& piece : maybe_dtensor(along.tensor)->shards()) {
    const Chosen own = largest(piece, self.dim() == 0 ? k : n_candidates[along.own], along.dim, is_largest, is_sorted);
    values.push_back(own.values);
    indices.push_back(along.is_sharded() ? own.indices + along.intervals[along.own].begin : own.indices);
  }
  if (along.is_sharded()) {
    const auto gathered = [&](const Shards& candidates, at::ScalarType dtype) {
      const at::Tensor sharded = along.wrapped(candidates, n_all, along.with_lengths(n_candidates), dtype);
      return maybe_dtensor(moved_to(sharded, along.unsharded()))->shards();
    };
    const Shards all_values = gathered(values, self.scalar_type()), all_indices = gathered(indices, at::kLong);
    for (size_t i = 0; i < values.size(); ++i) {
      const Chosen best = largest(all_values[i], k, along.dim, is_largest, is_sorted);
      values[i] = best.values;
      indices[i] = all_indices[i].gather(along.dim, best.indices);
    }
  }
  return {along.wrapped(values, k, along.unsharded(), self.scalar_type()),
          along.wrapped(indices, k, along.unsharded(), at::kLong)};
}

}  // namespace

void register_sorting(RuleTable& table) {
  table.add({"aten::sort", "aten::sort.stable"}, pointwise().whole("dim"));
  aten_kernels().impl("topk", &topk);
}

}  // namespace shardwise
