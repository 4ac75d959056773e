// ops/selection_grad.cpp: the derivatives of what picks values by index: max, min, median and kthvalue along a dim, sort, topk.
#include "ops/families.h"
#include "ops/kernels.h"

#include <ATen/ops/scatter.h>

namespace shardwise {
namespace {

/// torch's own makes plain zeros to scatter into.
at::Tensor value_selecting_reduction_backward(const at::Tensor& grad, int64_t dim, const at::Tensor& indices,
                                              c10::SymIntArrayRef sizes, bool keepdim) {
  const bool is_reduced = !keepdim && !sizes.empty();
  const at::Tensor values = is_reduced ? grad.unsqueeze(dim) : grad;
  return grad.new_zeros_symint(sizes).scatter(dim, is_reduced ? indices.unsqueeze(dim) : indices, values);
}

}  // namespace

void register_selection_grad() {
  add_composition("value_selecting_reduction_backward", &value_selecting_reduction_backward);
}

}  // namespace shardwise
