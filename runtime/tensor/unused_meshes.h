// runtime/tensor/unused_meshes.h: finds meshes that only caches hold, so that caches can free them with their groups, threads and files.
//
// A cache keeps the specs of its keys alive, and a spec keeps its mesh alive. When a cache adds an entry for the first time after a mesh
// was made, it drops its entries for unused meshes. So a program that keeps making and dropping meshes has only a few of them alive.
#pragma once

#include "runtime/comm/gil_release.h"
#include "runtime/tensor/spec.h"

#include <cstdint>
#include <unordered_set>
#include <utility>

namespace shardwise {

/// The meshes that are held by nothing but specs: by no Python object and no C++ variable. Tensors may still be on them; their cache
/// entries are then computed again. Cost: O(living specs).
class UnusedMeshes {
 public:
  UnusedMeshes();
  bool has(const Spec& spec) const { return meshes_.contains(spec.mesh().get()); }
  bool has(const SpecPtr& spec) const { return spec && has(*spec); }

 private:
  std::unordered_set<const DeviceMesh*> meshes_;
};

/// How many meshes this process has made.
uint64_t n_meshes_made();
/// Called when a mesh was made.
void count_mesh();

/// Calls `drop(unused)` if a mesh was made since this thread's last call with a `drop` of this type.
template <class Drop>
void drop_unused(const Drop& drop) {
  static thread_local uint64_t n_seen = 0;
  const uint64_t n_made = n_meshes_made();
  if (std::exchange(n_seen, n_made) == n_made) return;
  const UnusedMeshes unused;
  const GilRelease no_gil;  // a mesh may end here
  drop(unused);
}

/// All living specs.
std::vector<SpecPtr> living_specs();

}  // namespace shardwise
