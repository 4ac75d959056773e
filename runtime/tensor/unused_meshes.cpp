#include "runtime/tensor/unused_meshes.h"

#include <atomic>
#include <unordered_map>

namespace shardwise {
namespace {

std::atomic<uint64_t> n_made{0};

}  // namespace

UnusedMeshes::UnusedMeshes() {
  const std::vector<SpecPtr> specs = living_specs();  // keeps the meshes alive; itself holds no reference to one
  std::unordered_map<const DeviceMesh*, int64_t> n_owners;
  for (const SpecPtr& spec : specs) ++n_owners[spec->mesh().get()];
  std::unordered_map<const DeviceMesh*, const DeviceMesh*> on_meta;  // each owns its mesh with memory
  for (const auto& [mesh, n] : n_owners)
    if (const MeshPtr with_memory = mesh->with_memory(); with_memory.get() != mesh)
      on_meta.emplace(mesh, with_memory.get());
  for (const auto& [mesh, with_memory] : on_meta) ++n_owners[with_memory];
  for (const auto& [mesh, n] : n_owners)
    if (!on_meta.contains(mesh) && mesh->weak_from_this().use_count() == n) meshes_.insert(mesh);
  for (const auto& [mesh, with_memory] : on_meta)
    if (meshes_.contains(with_memory)) meshes_.insert(mesh);
}

uint64_t n_meshes_made() { return n_made.load(std::memory_order_relaxed); }

void count_mesh() { n_made.fetch_add(1, std::memory_order_relaxed); }

}  // namespace shardwise
