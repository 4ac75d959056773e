#include "runtime/tensor/mesh_attachment.h"

#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

struct Companions {
  std::mutex mutex;
  std::unordered_map<const DeviceMesh*, std::shared_ptr<MeshAttachment>> of;
};

Companions& companions() {
  static auto* companions = new Companions;  // never destroyed: meshes may end at exit
  return *companions;
}

}  // namespace

void attach_to(const DeviceMesh& mesh, std::shared_ptr<MeshAttachment> companion) {
  const std::lock_guard lock(companions().mutex);
  companions().of[&mesh].swap(companion);
}

std::shared_ptr<MeshAttachment> attachment_of(const DeviceMesh& mesh) {
  const std::lock_guard lock(companions().mutex);
  const auto found = companions().of.find(&mesh);
  return found == companions().of.end() ? nullptr : found->second;
}

void drop_attachment_of(const DeviceMesh& mesh) {
  std::shared_ptr<MeshAttachment> last;  // freed after the lock: it may own another mesh
  const std::lock_guard lock(companions().mutex);
  const auto found = companions().of.find(&mesh);
  if (found == companions().of.end()) return;
  last = std::move(found->second);
  companions().of.erase(found);
}

}  // namespace shardwise
