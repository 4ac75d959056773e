#include "ops/sparse/entry_box.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

namespace shardwise {
namespace {

/// The box's first index as a column [sparse dims, 1], undefined where it is all zeros.
at::Tensor first_index(const Box& box, const at::Tensor& indices) {
  const std::vector<int64_t> first(box.offsets.begin(), box.offsets.begin() + indices.size(0));
  if (std::ranges::all_of(first, [](int64_t offset) { return offset == 0; })) return {};
  return at::tensor(first, at::kLong).unsqueeze(1).to(indices.device());
}

}  // namespace

at::Tensor indices_within(const at::Tensor& indices, const Box& box) {
  const at::Tensor first = first_index(box, indices);
  return first.defined() ? indices - first : indices;
}

at::Tensor indices_of_whole(const at::Tensor& indices, const Box& box) {
  const at::Tensor first = first_index(box, indices);
  return first.defined() ? indices + first : indices;
}

at::Tensor columns_of(at::Tensor values, const Box& box, int64_t sparse_dim) {
  for (int64_t dim = 1; dim < values.dim(); ++dim)
    if (const int64_t of = dim + sparse_dim - 1; values.size(dim) != box.sizes[of])
      values = values.narrow(dim, box.offsets[of], box.sizes[of]);
  return values;
}

}  // namespace shardwise
