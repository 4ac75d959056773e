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

}  // namespace shardwise
