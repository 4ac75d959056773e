#include "runtime/tensor/mesh_attachment.h"

#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

struct Attachments {
  std::mutex mutex;
  std::unordered_map<const DeviceMesh*, std::shared_ptr<MeshAttachment>> of;
};

Attachments& attachments() {
  static auto* const attachments = new Attachments;  // never destroyed: meshes may end at exit
  return *attachments;
}

}  // namespace

void attach_to(const DeviceMesh& mesh, std::shared_ptr<MeshAttachment> attachment) {
  const std::lock_guard lock(attachments().mutex);
  attachments().of[&mesh].swap(attachment);
}

std::shared_ptr<MeshAttachment> attachment_of(const DeviceMesh& mesh) {
  const std::lock_guard lock(attachments().mutex);
  const auto found = attachments().of.find(&mesh);
  return found == attachments().of.end() ? nullptr : found->second;
}

void drop_attachment_of(const DeviceMesh& mesh) {
  std::shared_ptr<MeshAttachment> last;  // freed after the lock: it may own another mesh
  const std::lock_guard lock(attachments().mutex);
  const auto found = attachments().of.find(&mesh);
  if (found == attachments().of.end()) return;
  last = std::move(found->second);
  attachments().of.erase(found);
}

}  // namespace shardwise
