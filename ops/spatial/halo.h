// ops/spatial/halo.h: exchange of halos: shards of a dim extended by rows of their neighbours; plain tensors.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// The interval of tensor dim `dim` that each rank along `mesh_dim` holds, and the window that it computes on; windows
/// may overlap. One interval per coordinate, ascending; every index is held once.
///
/// 8 rows on 2 ranks, windows of one more row:  held [0,4) [4,8), windows [0,5) [3,8): each rank sends one row.
struct Halo {
  MeshPtr mesh;
  int64_t mesh_dim = 0;
  int64_t dim = 0;
  std::vector<Interval> held, windows;

  /// This rank's window. `piece` is the held interval; the rest of the window is received. Collective along the mesh dim.
  at::Tensor fetch(const at::Tensor& piece) const;
  /// The gradient of fetch(): the sum of all ranks' windows; each index goes to the rank that holds it. Collective as fetch().
  at::Tensor add_to_owners(const at::Tensor& window) const;

  const Interval& own_window() const { return windows[(*mesh->coord())[mesh_dim]]; }
};

}  // namespace shardwise
