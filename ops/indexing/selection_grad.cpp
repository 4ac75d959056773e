// ops/indexing/selection_grad.cpp: derivatives of operators that select values: max, min, median, kthvalue, sort.
#include "ops/families.h"
#include "ops/indexing/index_grad.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"

#include <c10/core/WrapDimMinimal.h>

namespace shardwise {
namespace {

/// The gradient of a tensor of `sizes` from `values`, the gradient of its elements at `indices` along `dim`. It is laid out as `values`. torch's
/// formulas scatter into plain zeros, by an operator that checks the indices on all ranks, which is collective.
at::Tensor at_selected(const at::Tensor& values, int64_t dim, const at::Tensor& indices, c10::IntArrayRef sizes) {
  if (sizes.empty()) return values;  // the one value
  const MeshPtr& mesh = spec_of(values)->mesh();
  const auto source =
      Spec::intern(mesh, sizes, Placements(mesh->ndim()), row_major_strides(sizes), values.scalar_type());
  const at::Tensor places = index_operand("aten::value_selecting_reduction_backward", indices, mesh);
  return gather_grad(values, places, source, c10::maybe_wrap_dim(dim, values.dim()));
}

at::Tensor value_selecting_reduction_backward(const at::Tensor& grad, int64_t dim, const at::Tensor& indices,
                                              c10::SymIntArrayRef sizes, bool keepdim) {
  const bool is_reduced = !keepdim && !sizes.empty();
  Dims concrete;
  for (const c10::SymInt& size : sizes) concrete.push_back(size.expect_int());
  return is_reduced ? at_selected(grad.unsqueeze(dim), dim, indices.unsqueeze(dim), concrete)
                    : at_selected(grad, dim, indices, concrete);
}

/// A value may be the running extreme at several positions.
at::Tensor cummaxmin_backward(const at::Tensor& grad, const at::Tensor& /*input*/, const at::Tensor& indices,
                              int64_t dim) {
  return at_selected(grad, dim, indices, grad.sizes());
}

}  // namespace

void register_selection_grad() {
  add_composition("cummaxmin_backward", &cummaxmin_backward);
  add_composition("value_selecting_reduction_backward", &value_selecting_reduction_backward);
}

}  // namespace shardwise
