// runtime/tensor/unused_meshes.h: meshes that only caches may still hold, so that caches let go of them, their groups, threads and files.
//
// A cache of answers keeps the specs of its keys, and a spec keeps its mesh. At its first new answer after a mesh was made, a cache drops
// the answers for unused meshes. A program that makes and drops meshes without end so keeps few of them.
#pragma once

#include "runtime/comm/gil_release.h"
#include "runtime/tensor/spec.h"

#include <cstdint>
#include <unordered_set>
#include <utility>

namespace shardwise {

/// The meshes that nothing but specs holds: no object of Python and no variable of C++. Tensors may still be on them; their answers are
/// then worked out again. Cost: O(living specs).
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
/// Called where one was made.
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
