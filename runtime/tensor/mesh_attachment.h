// runtime/tensor/mesh_attachment.h: what a language's binding knows of a mesh, kept as long as the mesh lives.
#pragma once

#include "runtime/tensor/device_mesh.h"

namespace shardwise {

class MeshAttachment {
 public:
  virtual ~MeshAttachment() = default;
};

/// In place of what was kept. It must not own the mesh.
void attach_to(const DeviceMesh& mesh, std::shared_ptr<MeshAttachment> companion);

/// Null where nothing is kept.
std::shared_ptr<MeshAttachment> attachment_of(const DeviceMesh& mesh);

/// Called where the mesh ends.
void drop_attachment_of(const DeviceMesh& mesh);

}  // namespace shardwise
