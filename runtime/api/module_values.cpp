#include "runtime/api/module_values.h"

namespace shardwise {

bool shards_features(const Placement& placement, int64_t n_dims) {
  return placement.with_dim_from_zero(n_dims).divided_dim() == n_dims - 1;
}

at::Tensor laid_out(const at::Tensor& tensor, const std::optional<Placement>& wanted, bool is_local) {
  at::Tensor result = tensor;
  if (wanted) {
    const Spec& spec = *spec_of(tensor);
    const Placement target = wanted->with_dim_from_zero(spec.dim());
    const auto& present = spec.placements();
    const bool may_be_uneven = target.is_chunk() && !is_local && present[0].block() == 0;
    const bool is_there = present.size() == 1 && (may_be_uneven ? present[0].is_alike(target) : present[0] == target);
    if (!is_there) result = redistribute(tensor, spec.mesh(), {target}, {.plan = {}, .async_op = !is_local});
  }
  return is_local ? to_local(result) : result;
}

}  // namespace shardwise
