// runtime/tensor/mesh_attachment.h: an object that a language binding attaches to a mesh for the mesh's lifetime.
#pragma once

#include "runtime/tensor/device_mesh.h"

namespace shardwise {

class MeshAttachment {
 public:
  virtual ~MeshAttachment() = default;
};

/// Replaces an earlier attachment. The attachment must not own the mesh.
void attach_to(const DeviceMesh& mesh, std::shared_ptr<MeshAttachment> attachment);

/// Null if nothing is attached.
std::shared_ptr<MeshAttachment> attachment_of(const DeviceMesh& mesh);

/// Called when the mesh ends.
void drop_attachment_of(const DeviceMesh& mesh);

}  // namespace shardwise
