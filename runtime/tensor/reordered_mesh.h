// runtime/tensor/reordered_mesh.h: meshes whose dims are in the order in which they split a tensor.
//
// A tensor that is sharded against the order of mesh dims is stored on a mesh of the same ranks with these dims exchanged, on which all its
// Shards are plain: (1st: tp=2, 2nd: dp=2). Programs only see the mesh that they passed, and the placements as torch.distributed.tensor
// spells them.
#pragma once

#include "placements/split_order.h"
#include "runtime/tensor/spec.h"

#include <optional>
#include <vector>

namespace shardwise {

/// The mesh and plain placements with which a tensor is stored.
struct PlacedOn {
  MeshPtr mesh;
  std::vector<Placement> placements;
};

/// The mesh and placements for a tensor of `n_dims` dims that the user places as `written` on `mesh`. The mesh is `mesh` itself unless a
/// Shard splits against its order; otherwise it has its dims in the order of the splits, and the same groups. Nothing is sent.
///
/// Throws: c10::ValueError as order_of_splits().
PlacedOn placed_on_mesh(const MeshPtr& mesh, UserPlacements written, int64_t n_dims);

/// The placements of placed_on_mesh() on a given mesh, which may be reordered. Nothing if a Shard splits in another order than the mesh's.
std::optional<std::vector<Placement>> maybe_placements_on(const MeshPtr& mesh, const UserPlacements& written,
                                                          int64_t n_dims);

/// A layout as the user spells it.
struct UserLayout {
  MeshPtr mesh;
  UserPlacements placements;
};

/// The mesh that the program passed, and the placements on it. Those of `spec` itself if explicit sizes cannot be spelled in that order.
UserLayout user_layout_of(const Spec& spec);

/// `spec` on `mesh`, if the meshes of both are reorderings of the same mesh (or one is that mesh itself). Plain Shards move to the order of
/// `mesh`; Shards with sizes, and pieces, become replicas. Null for other meshes.
SpecPtr on_sibling(const Spec& spec, const MeshPtr& mesh);

}  // namespace shardwise
