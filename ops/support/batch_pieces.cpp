#include "ops/support/batch_pieces.h"

#include "ops/support/derivative.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/traced_pieces.h"

#include <algorithm>

namespace shardwise {

bool has_plain_piece(const at::Tensor& tensor, const Spec& input) {
  const DTensorImpl* impl = maybe_dtensor(tensor);
  if (!impl) return false;
  const Spec& spec = *impl->spec();
  return spec.mesh() == input.mesh() && spec.dtype() == input.dtype() && spec.layout().has_one_box_each() &&
         !impl->holds_subclass() && !impl->device().is_meta() && !is_traced(impl->local_tensors()) &&
         !has_tangent(tensor);
}

bool has_whole_piece(const at::Tensor& tensor, const Spec& input) {
  return has_plain_piece(tensor, input) && spec_of(tensor)->layout().is_replicated();
}

bool has_batch_piece(const at::Tensor& input, int64_t batch_dim) {
  return is_dtensor(input) && input.dim() == 3 && has_plain_piece(input, *spec_of(input)) &&
         std::ranges::all_of(spec_of(input)->placements(),
                             [&](const Placement& each) { return each.is_whole() || each.split_dim() == batch_dim; });
}

}  // namespace shardwise
