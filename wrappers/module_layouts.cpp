#include "wrappers/module_layouts.h"

namespace shardwise {
namespace {

bool divides_last_dim(const Placement& layout) {
  return layout.divided_dim() == -1 && layout.with_dim_from_zero(1).divided_dim() == 0;
}

}  // namespace

LayerPlacements layer_placements(LayerKind kind, LayerSplit split, const std::optional<Placement>& given) {
  const Placement features = given && divides_last_dim(*given) ? *given : Placement::shard(-1);
  const Placement whole = Placement::replicate(), rows = features.with_dim(0), columns = features.with_dim(1);
  if (split == LayerSplit::kColwise)
    return kind == LayerKind::kLinear ? LayerPlacements{rows, rows, whole, features}
                                      : LayerPlacements{columns, columns, whole, features};
  return kind == LayerKind::kLinear ? LayerPlacements{columns, whole, features, whole}
                                    : LayerPlacements{Placement::shard(0), Placement::shard(0), whole, whole};
}

}  // namespace shardwise
