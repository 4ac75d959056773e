// runtime/tensor/reordered_mesh.h: meshes whose dims stand in the order in which they split a tensor.
//
// A tensor that is sharded against the order of mesh dims lives on a mesh of the same ranks with these dims exchanged, where all
// its Shards are plain ones: (1st: tp=2, 2nd: dp=2). Programs know it by the mesh that they gave, and by placements as
// torch.distributed.tensor writes them.
#pragma once

#include "placements/split_order.h"
#include "runtime/tensor/spec.h"

#include <optional>
#include <vector>

namespace shardwise {

/// Where a tensor lives: a mesh, and plain placements on it.
struct PlacedOn {
  MeshPtr mesh;
  std::vector<Placement> placements;
};

/// The home of a tensor of `n_dims` dims that is `written` on `mesh`: that mesh itself unless a Shard splits against its order, else one
/// with its dims in the order of the splits, over the same groups. Nothing is sent.
///
/// Throws: c10::ValueError as order_of_splits().
PlacedOn placed_on_mesh(const MeshPtr& mesh, UserPlacements written, int64_t n_dims);

/// The same on `mesh`, given or reordered. Nothing where a Shard splits in another order than there.
std::optional<std::vector<Placement>> maybe_placements_on(const MeshPtr& mesh, const UserPlacements& written,
                                                          int64_t n_dims);

/// A layout as programs know it.
struct UserLayout {
  MeshPtr mesh;
  UserPlacements placements;
};

/// The mesh that the program gave, and the placements on it; those of `spec` itself where explicit sizes do not let them be written so.
UserLayout user_layout_of(const Spec& spec);

/// `spec` on `mesh`, which is the mesh that the program gave where that of `spec` is its reordered one, or the other way round, or
/// another reordered one of it: plain Shards in the order of `mesh`, replicas in the place of those with sizes. Null for other meshes.
SpecPtr on_sibling(const Spec& spec, const MeshPtr& mesh);

}  // namespace shardwise
