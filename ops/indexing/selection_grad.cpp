// ops/indexing/selection_grad.cpp: derivatives of operators that select values: max, min, median, kthvalue, sort.
#include "ops/families.h"
#include "ops/indexing/index_grad.h"
#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/WrapDimMinimal.h>

namespace shardwise {
namespace {

/// torch's formula scatters into plain zeros; these are sharded like the gradient. No index occurs twice.
at::Tensor value_selecting_reduction_backward(const at::Tensor& grad, int64_t dim, const at::Tensor& indices,
                                              c10::SymIntArrayRef sizes, bool keepdim) {
  const bool is_reduced = !keepdim && !sizes.empty();
  const at::Tensor values = is_reduced ? grad.unsqueeze(dim) : grad;
  const int64_t along = c10::maybe_wrap_dim(dim, values.dim());
  std::vector<int64_t> of_source(values.dim());
  for (int64_t d = 0; d < values.dim(); ++d) of_source[d] = d == along ? -1 : d;

  const SpecPtr& spec = spec_of(grad);
  Dims concrete;
  for (const c10::SymInt& size : sizes) concrete.push_back(size.expect_int());
  const auto source = Spec::intern(spec->mesh(), concrete, Placements(spec->placements().size()),
                                   row_major_strides(concrete), grad.scalar_type());
  return zeros_for_grad(*source, values, of_source)
      .scatter_add_(dim, is_reduced ? indices.unsqueeze(dim) : indices, values);
}

/// A value may be the running extreme at several positions.
at::Tensor cummaxmin_backward(const at::Tensor& grad, const at::Tensor& /*input*/, const at::Tensor& indices,
                              int64_t dim) {
  return at::zeros_like(grad).scatter_add(dim, indices, grad);
}

}  // namespace

void register_selection_grad() {
  add_composition("cummaxmin_backward", &cummaxmin_backward);
  add_composition("value_selecting_reduction_backward", &value_selecting_reduction_backward);
}

}  // namespace shardwise
