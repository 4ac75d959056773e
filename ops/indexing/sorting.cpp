// ops/indexing/sorting.cpp: sort and topk along a dim. sort moves the shard to another dim; for topk each rank sends
// its k candidates.
#include "ops/families.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/topk.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Values and indices side by side, as bytes along a new last dim, so that one message carries both.
at::Tensor packed(const at::Tensor& values, const at::Tensor& indices) {
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.unsqueeze(-1).clone(at::MemoryFormat::Contiguous).view(at::kByte);
  };
  return at::cat({bytes(values), bytes(indices)}, -1);
}

/// The tensor of `dtype` that begins at byte `begin` of each entry.
at::Tensor unpacked(const at::Tensor& bytes, int64_t begin, at::ScalarType dtype) {
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  return bytes.narrow(-1, begin, width).clone(at::MemoryFormat::Contiguous).view(dtype).squeeze(-1);  // at offset 0
}

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

/// Gathers all ranks' packed candidates in one exchange. Rank i has `n_candidates[i]` of them along the dim.
Shards gathered(const DimPieces& along, Shards own, const std::vector<int64_t>& n_candidates, int64_t n_all,
                int64_t value_bytes) {
  const SpecPtr& spec = spec_of(along.tensor);
  Dims sizes(spec->sizes());
  sizes[along.dim] = n_all;
  sizes.push_back(value_bytes + static_cast<int64_t>(sizeof(int64_t)));
  const SpecPtr sharded =
      Spec::intern(spec->mesh(), sizes, along.with_lengths(n_candidates), row_major_strides(sizes), at::kByte);
  return maybe_dtensor(moved_to(wrap(sharded, std::move(own)), along.unsharded()))->shards();
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
    indices.push_back(along.has_several() ? own.indices + along.intervals[along.own].begin : own.indices);
  }
  if (along.has_several()) {
    const at::ScalarType dtype = self.scalar_type();
    Shards own;
    for (size_t i = 0; i < values.size(); ++i) own.push_back(packed(values[i], indices[i]));
    const Shards all = gathered(along, std::move(own), n_candidates, n_all, static_cast<int64_t>(self.element_size()));
    for (size_t i = 0; i < values.size(); ++i) {
      const Chosen best = largest(unpacked(all[i], 0, dtype), k, along.dim, is_largest, is_sorted);
      values[i] = best.values;
      indices[i] =
          unpacked(all[i], static_cast<int64_t>(self.element_size()), at::kLong).gather(along.dim, best.indices);
    }
  }
  return {along.wrapped(values, k, along.unsharded(), self.scalar_type()),
          along.wrapped(indices, k, along.unsharded(), at::kLong)};
}

}  // namespace

void register_sorting(RuleTable& table) {
  table.add({"aten::sort", "aten::sort.stable"}, pointwise().whole("dim").sampled());
  aten_kernels().impl_in_memory("topk", &topk);
}

}  // namespace shardwise
