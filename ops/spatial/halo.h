// ops/spatial/halo.h: pieces of a cut dim together with what lies beside them on other ranks; plain tensors.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// What each rank along `mesh_dim` has of tensor dim `dim`, and the window of it that it works on; windows may overlap. One interval
/// per coordinate, ascending; every index is held once.
///
/// 8 rows on 2 ranks, windows of one more row:  held [0,4) [4,8), windows [0,5) [3,8): a row goes each way.
struct Halo {
  MeshPtr mesh;
  int64_t mesh_dim = 0;
  int64_t dim = 0;
  std::vector<Interval> held, windows;

  /// This rank's window, of which `piece` is its own part. Every member calls it; received is what it lacks.
  at::Tensor fetch(const at::Tensor& piece) const;
  /// The reverse: each index's values of all windows that have it, added up where it is held.
  at::Tensor give_back(const at::Tensor& window) const;

  const Interval& own_window() const { return windows[(*mesh->coord())[mesh_dim]]; }
};

}  // namespace shardwise
