#include "wrappers/module_layouts.h"

namespace shardwise {

LayerPlacements layer_placements(LayerKind kind, LayerSplit split) {
  const Placement whole = Placement::replicate(), rows = Placement::shard(0), columns = Placement::shard(1),
                  features = Placement::shard(-1);
  if (split == LayerSplit::kColwise)
    return kind == LayerKind::kLinear ? LayerPlacements{rows, rows, whole, features}
                                      : LayerPlacements{columns, columns, whole, features};
  return kind == LayerKind::kLinear ? LayerPlacements{columns, whole, features, whole}
                                    : LayerPlacements{rows, rows, whole, whole};
}

bool shards_features(const Placement& of_plain, int64_t n_dims) {
  return of_plain.with_dim_from_zero(n_dims).divided_dim() == n_dims - 1;
}

at::Tensor laid_out(const at::Tensor& tensor, const std::optional<Placement>& wanted, bool is_local) {
  at::Tensor result = tensor;
  if (wanted) {
    const Spec& spec = *spec_of(tensor);
    const Placement target = wanted->with_dim_from_zero(spec.dim());
    const auto& present = spec.placements();
    const bool is_there =
        present.size() == 1 && (target.is_chunk() ? present[0].is_alike(target) : present[0] == target);
    if (!is_there) result = redistribute(tensor, spec.mesh(), {target}, {.plan = {}, .async_op = true});
  }
  return is_local ? to_local(result) : result;
}

}  // namespace shardwise
