// runtime/tensor/mesh_lines.h: meshes of one dim: all ranks of the world, and the ranks along one dim of a mesh.
#pragma once

#include "runtime/tensor/device_mesh.h"

namespace shardwise {

/// A 1-D mesh of all ranks of this thread's world.
MeshPtr world_mesh(c10::DeviceType device_type);

/// The 1-D mesh of the ranks along `mesh_dim` that includes this rank (coordinate 0 on a non-member). Sends nothing: the group exists already.
MeshPtr line_of(const MeshPtr& mesh, int64_t mesh_dim);

}  // namespace shardwise
