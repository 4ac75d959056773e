// ops/shapes/slice_writes.cpp: copies of a tensor with one slice, index or diagonal replaced, and the gradients of
// slice and select. Each rank writes the values of its own shard.
#include "ops/families.h"
#include "ops/indexing/index.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"
#include "text/check.h"

#include <ATen/ops/arange.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace shardwise {
namespace {

at::Tensor with_slice(const at::Tensor& self, const at::Tensor& src, int64_t dim, std::optional<int64_t> start,
                      std::optional<int64_t> end, int64_t step) {
  at::Tensor result = self.clone();
  at::Tensor place = result.slice(dim, start, end, step);
  SW_CHECK(place.sizes() == src.sizes(),
           "[aten::slice_scatter] expected src to have a size equal to the slice of self. src size = [{}], slice size "
           "= [{}]",
           fmt::join(src.sizes(), ", "), fmt::join(place.sizes(), ", "));
  place.copy_(src);
  return result;
}

at::Tensor with_index(const at::Tensor& self, const at::Tensor& src, int64_t of_dim, int64_t index) {
  const int64_t dim = c10::maybe_wrap_dim(of_dim, self.dim());
  const int64_t size = self.size(dim);
  SW_CHECK_INDEX(-size <= index && index < size,
                 "[aten::select_scatter] index {} out of range for tensor of size [{}] at dimension {}", index,
                 fmt::join(self.sizes(), ", "), dim);
  const int64_t first = index < 0 ? index + size : index;
  return with_slice(self, src.unsqueeze(dim), dim, first, first + 1, 1);
}

/// The elements of a diagonal as indices of two dims.
struct Diagonal {
  Indexed at;
  int64_t length;
  int64_t n_dims;

  Diagonal(const at::Tensor& self, int64_t offset, int64_t of_dim1, int64_t of_dim2) : n_dims(self.dim()) {
    int64_t dim1 = c10::maybe_wrap_dim(of_dim1, self.dim()), dim2 = c10::maybe_wrap_dim(of_dim2, self.dim());
    SW_CHECK(dim1 != dim2, "[aten::diagonal_scatter] diagonal dimensions cannot be identical {}, {}", of_dim1, of_dim2);
    const int64_t row = std::max<int64_t>(-offset, 0), column = std::max<int64_t>(offset, 0);
    length = std::max<int64_t>(0, std::min(self.size(dim1) - row, self.size(dim2) - column));
    const MeshPtr& mesh = spec_of(self)->mesh();
    const auto counted_from = [&](int64_t first) {
      const at::Tensor numbers =
          at::arange(first, first + length, at::TensorOptions().dtype(at::kLong).device(mesh->device()));
      return replica_of(numbers, mesh);
    };
    at = {{counted_from(row), counted_from(column)}, {dim1, dim2}};
    if (dim1 > dim2) {
      std::swap(at.indices[0], at.indices[1]);
      std::swap(at.dims[0], at.dims[1]);
    }
  }

  /// Moves the diagonal, the last dim, to where indexing with adjacent or separate dims puts the indexed dim.
  at::Tensor as_indexed(const at::Tensor& diagonal) const {
    const bool adjoin = at.dims[1] == at.dims[0] + 1;
    return diagonal.movedim(-1, adjoin ? at.dims[0] : 0);
  }
};

at::Tensor with_diagonal(const at::Tensor& self, const at::Tensor& src, int64_t offset, int64_t dim1, int64_t dim2) {
  const Diagonal diagonal(self, offset, dim1, dim2);
  std::vector<int64_t> sizes;
  for (int64_t dim = 0; dim < self.dim(); ++dim)
    if (dim != diagonal.at.dims[0] && dim != diagonal.at.dims[1]) sizes.push_back(self.size(dim));
  sizes.push_back(diagonal.length);
  SW_CHECK(src.sizes() == sizes,
           "[aten::diagonal_scatter] expected src to have a size equal to the slice of self. src size = [{}], slice "
           "size = [{}]",
           fmt::join(src.sizes(), ", "), fmt::join(sizes, ", "));
  if (src.numel() == 0) return self.clone();
  return put(self, diagonal.at, diagonal.as_indexed(src), /*accumulate=*/false);
}

// torch's slice_backward and select_backward make plain zeros.

at::Tensor slice_backward(const at::Tensor& grad, c10::SymIntArrayRef sizes, int64_t dim, c10::SymInt start,
                          c10::SymInt end, c10::SymInt step) {
  const at::Tensor zeros = grad.new_zeros_symint(sizes);
  return with_slice(zeros, grad, dim, start.expect_int(), end.expect_int(), step.expect_int());
}

at::Tensor select_backward(const at::Tensor& grad, c10::SymIntArrayRef sizes, int64_t dim, c10::SymInt index) {
  return with_index(grad.new_zeros_symint(sizes), grad, dim, index.expect_int());
}

}  // namespace

void register_slice_writes(RuleTable& /*table*/) {
  auto& aten = aten_kernels();
  aten.impl("slice_scatter", &with_slice);
  aten.impl("select_scatter", &with_index);
  aten.impl("diagonal_scatter", &with_diagonal);
  aten.impl("slice_backward", &slice_backward);
  aten.impl("select_backward", &select_backward);
}

}  // namespace shardwise
