// runtime/redistribute/mesh_agreement.h: before a move between two meshes, checks that all their ranks mean the same two meshes.
//
// On a (dp=2, tp=2) mesh, mesh["dp"] and mesh["tp"] have different ranks on each rank:
//
//   rank 0: [0, 2] and [0, 1]      rank 2: [0, 2] and [2, 3]
//
// In a move between them, rank 0 would send to ranks that expect nothing from it.
#pragma once

#include "runtime/tensor/device_mesh.h"

namespace shardwise {

/// Collective over both meshes, first over `from`; ranks outside both do nothing. If the meshes have no common rank, each mesh only
/// compares what its own ranks know.
///
/// Throws: c10::ValueError on all ranks of both meshes if they do not mean the same two meshes.
/// Cost: nothing if both have the same ranks. A gather of two numbers per rank if one mesh has all ranks of the other; otherwise three
/// gathers. CommTrace leaves them out.
void check_same_meshes(const DeviceMesh& from, const DeviceMesh& to);

}  // namespace shardwise
