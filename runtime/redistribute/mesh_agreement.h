// runtime/redistribute/mesh_agreement.h: whether all ranks of two meshes mean the same two, before a tensor moves from one to the other.
//
// On a (dp=2, tp=2) mesh mesh["dp"] and mesh["tp"] are other ranks on each rank:
//
//   rank 0: [0, 2] and [0, 1]      rank 2: [0, 2] and [2, 3]
//
// A move between them would have rank 0 send to ranks that expect nothing of it.
#pragma once

#include "runtime/tensor/device_mesh.h"

namespace shardwise {

/// True where every rank of one is a rank of the other.
bool have_same_ranks(const DeviceMesh& a, const DeviceMesh& b);

/// Collective over both meshes, first over `from`; ranks outside both do nothing. Where no rank is in both, each mesh knows only what its
/// own ranks mean.
///
/// Throws: c10::ValueError on all ranks of both meshes where they do not mean the same two.
/// Cost: a gather of two numbers per rank of the larger mesh where that has all ranks of the other, none where both have the same; else
/// three gathers. CommTrace leaves them out.
void check_same_meshes(const DeviceMesh& from, const DeviceMesh& to);

}  // namespace shardwise
