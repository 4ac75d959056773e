// runtime/tensor/mesh_companion.h: what a language's binding knows of a mesh, kept as long as the mesh lives.
#pragma once

#include "runtime/tensor/device_mesh.h"

namespace shardwise {

class MeshCompanion {
 public:
  virtual ~MeshCompanion() = default;
};

/// In place of what was kept. It must not own the mesh.
void keep_with(const DeviceMesh& mesh, std::shared_ptr<MeshCompanion> companion);

/// Null where nothing is kept.
std::shared_ptr<MeshCompanion> kept_with(const DeviceMesh& mesh);

/// Called where the mesh ends.
void let_go_of(const DeviceMesh& mesh);

}  // namespace shardwise
