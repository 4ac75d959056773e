// runtime/tensor/unused_meshes.h: meshes that only caches may still hold, so that caches let go of them, their groups, threads and files.
//
// A cache of answers keeps the specs of its keys, and a spec keeps its mesh. At its first new answer after a mesh was made, a cache drops
// the answers for unused meshes. A program that makes and drops meshes without end so keeps few of them.
#pragma once

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

/// Tells one cache of one thread when to look for unused meshes.
class NewMeshes {
 public:
  /// True if a mesh was made since the last call.
  bool were_made() {
    const uint64_t n = n_meshes_made();
    return std::exchange(seen_, n) != n;
  }

 private:
  uint64_t seen_ = 0;
};

/// All living specs.
std::vector<SpecPtr> living_specs();

}  // namespace shardwise
