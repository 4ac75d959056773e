#include "runtime/tensor/mesh_companion.h"

#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

struct Companions {
  std::mutex mutex;
  std::unordered_map<const DeviceMesh*, std::shared_ptr<MeshCompanion>> of;
};

Companions& companions() {
  static auto* companions = new Companions;  // never destroyed: meshes may end at exit
  return *companions;
}

}  // namespace

void keep_with(const DeviceMesh& mesh, std::shared_ptr<MeshCompanion> companion) {
  const std::lock_guard lock(companions().mutex);
  companions().of[&mesh].swap(companion);
}

std::shared_ptr<MeshCompanion> kept_with(const DeviceMesh& mesh) {
  const std::lock_guard lock(companions().mutex);
  const auto found = companions().of.find(&mesh);
  return found == companions().of.end() ? nullptr : found->second;
}

void let_go_of(const DeviceMesh& mesh) {
  std::shared_ptr<MeshCompanion> last;  // ends without the lock: it may own another mesh
  const std::lock_guard lock(companions().mutex);
  const auto found = companions().of.find(&mesh);
  if (found == companions().of.end()) return;
  last = std::move(found->second);
  companions().of.erase(found);
}

}  // namespace shardwise
