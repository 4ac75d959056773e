// runtime/tensor/mesh_families.h: the meshes that all ranks of a World made together.
//
// A pickled mesh names those that are to be made when it is read: the same ones on every rank.
#pragma once

#include "runtime/tensor/mesh_slices.h"

#include <optional>
#include <vector>

namespace shardwise {

/// All slices of a root along some of its dims; each rank has the slice that it is in.
struct MeshFamily {
  c10::DeviceType device_type;
  RankGrid root;
  DimNames root_names;
  DimNames names;  // of the slices
  std::optional<std::vector<DimNames>>
      dims;  // for each dim of the slices, dims of the root; without it, the family is the root alone
  bool operator==(const MeshFamily&) const = default;
};

/// Notes that all ranks of the World made `root`, or its slices with these names and dims. Does nothing if the root has groups of its own, or none.
void note_family(const DeviceMesh& root, const DimNames& names = {},
                 const std::optional<std::vector<DimNames>>& dims = std::nullopt);

/// The families that contain the mesh, the families that contain another member of these, and so on, in the order in which they were made. The
/// result is the same on all ranks, even if one rank's slice was also made as a mesh of its own and another rank's was not. Empty for a mesh that
/// has groups of its own, or none.
std::vector<MeshFamily> related_families(const DeviceMesh& mesh);

/// The mesh that all these are slices of, by their names; null if there is none. If one of them is flattened, its dim is a dim of the result. A mesh
/// may be a slice of several meshes; then each of these is tried, in the order in which they were made. Collective over the members.
MeshPtr common_root(c10::ArrayRef<MeshPtr> meshes);

}  // namespace shardwise
