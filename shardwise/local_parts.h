// shardwise/local_parts.h: distributed tensors of parts whose sizes the ranks tell each other.
#pragma once

#include "shardwise/dtensor.h"

#include <vector>

namespace shardwise {

/// Tensors on `mesh` of which each rank has `locals[i]`, placed as `placements[i]`, in which each Shard(dim) stands for parts of whatever extents
/// the ranks have along that dim; where several mesh dims shard it, they nest. Aliased and differentiable, as from_local().
///
/// Throws, alike on all ranks: c10::ValueError where these differ in number, dims, dtype or an extent that is not sharded, and for placements that
/// are not one per mesh dim; c10::IndexError for a dim out of range; c10::TypeError where one is distributed already. Collective over the mesh: the
/// ranks tell each other dtypes and sizes, of all tensors together (agreement.h).
std::vector<at::Tensor> from_local_parts(const std::vector<at::Tensor>& locals, const MeshPtr& mesh,
                                         const std::vector<Placements>& placements);

/// The batch of which each rank along `mesh` has the part `local`, of any number of rows (dim 0). Where `mesh` is a slice, mesh["dp"], ranks that
/// have the same place along "dp" must give the same part. The batch lives on mesh.root(), where parameters are after fully_shard(). In all
/// else as from_local_parts().
DTensor from_local_batch(const at::Tensor& local, const Mesh& mesh);

/// The mesh dims of mesh.root() that `mesh` is made of.
std::vector<int64_t> dims_in_root(const Mesh& mesh);

}  // namespace shardwise
