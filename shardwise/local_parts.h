// shardwise/local_parts.h: distributed tensors from local parts, whose sizes the ranks exchange.
#pragma once

#include "shardwise/dtensor.h"

#include <vector>

namespace shardwise {

/// Tensors on `mesh`: each rank passes its part `locals[i]` of tensor i, placed as `placements[i]`. A Shard(dim) stands for parts of any extents
/// along that dim; if several mesh dims shard it, they nest. Aliased and differentiable, as from_local().
///
/// Throws, alike on all ranks: c10::ValueError if the ranks' parts differ in number, dims, dtype or an extent that is not sharded, and for placements
/// that are not one per mesh dim; c10::IndexError for a dim out of range; c10::TypeError if a part is distributed already. Collective over the mesh:
/// the ranks exchange dtypes and sizes of all tensors at once (agreement.h).
std::vector<at::Tensor> from_local_parts(const std::vector<at::Tensor>& locals, const MeshPtr& mesh,
                                         const std::vector<Placements>& placements);

/// The batch of which each rank along `mesh` has the part `local`, with any number of rows (dim 0). If `mesh` is a slice, mesh["dp"], ranks with
/// equal coordinates along "dp" must pass the same part. The batch is on mesh.root(), like parameters after fully_shard(). Otherwise as
/// from_local_parts().
DTensor from_local_batch(const at::Tensor& local, const Mesh& mesh);

/// The mesh dims of mesh.root() that `mesh` consists of.
std::vector<int64_t> dims_in_root(const Mesh& mesh);

}  // namespace shardwise
