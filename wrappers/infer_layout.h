// wrappers/infer_layout.h: infers the layout of a tensor from the pieces that ranks hold. Pure: no communication, no tensors.
//
//   rows [0,1) [1,4) [4,5) [5,8) of ranks 0..3, [Shard(0)]   -> [Shard(0, sizes=[1, 3, 1, 3])]
//   columns, several per rank, in any order                  -> [EnumerableShard([...])]
//   the whole on the only rank, [Replicate()]                -> [Replicate()]
#pragma once

#include "placements/layout.h"
#include "wrappers/rank_pieces.h"

namespace shardwise {

struct InferredLayout {
  Layout layout;
  Dims strides;  // (elements)
  c10::ScalarType dtype;
};

/// `pieces`: one entry per rank, in the order of the grid.
///
/// Shape and strides are the ones in `pieces`, or else the extent of all pieces and their order in memory. Along mesh dims that are Replicate or
/// Partial, all ranks must hold the same boxes. If each rank has at most one piece and the pieces are sharded as in `placements`, the result has
/// these placements with explicit sizes. On a 1-D mesh any other tiling is an EnumerableShard.
///
/// Throws: c10::ValueError, alike on all ranks, naming the boxes and their ranks: shapes, strides, dtypes or devices that differ, pieces outside the
/// shape, overlaps, holes, replicas that differ, explicit sizes or pieces in `placements` that differ from the ranks' pieces, and an N-D mesh whose
/// placements do not describe the pieces.
InferredLayout infer_layout(const std::vector<RankPieces>& pieces, const std::shared_ptr<const RankGrid>& grid,
                            const std::vector<Placement>& placements, c10::DeviceType device_type);

}  // namespace shardwise
