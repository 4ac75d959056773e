// runtime/tensor/mesh_slices.h: slices of a mesh, flattened and unflattened meshes, and what they know of each other.
//
//   MeshPtr part = mesh->submesh({"dp", "tp"});   // root_of(part) is the mesh
//   flatten(part, "mp");                          // mesh->submesh({"pp", "mp"}) has the two dims as one
#pragma once

#include "runtime/comm/given_groups.h"
#include "runtime/tensor/device_mesh.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

using DimNames = std::vector<std::string>;

/// Thrown for a name that no dim of a mesh has. In Python it is a KeyError.
struct UnknownMeshDim : c10::ValueError {
  using ValueError::ValueError;
};

/// The groups over which a mesh and its slices communicate.
enum class MeshGroups {
  kWorlds,  // those that all ranks of the World make
  kGiven,   // GivenGroups, and groups that the members of the mesh make by themselves
  kAbsent,  // none
};

/// A mesh that was flattened to one dim. It is made again if its last user has gone.
struct FlattenedMesh {
  DimNames dims;  // of the root
  MeshGroups groups = MeshGroups::kWorlds;
  GivenGroups::ByRanks given;
  std::weak_ptr<const DeviceMesh> mesh;
};

/// The state of a mesh besides its grid. A part owns its root, and a root owns none of its parts.
struct MeshParts {
  MeshGroups groups = MeshGroups::kWorlds;
  GivenGroups::ByRanks given;  // the mesh's groups that are not the World's

  std::mutex mutex;  // guards the members below
  MeshPtr root;      // null for a mesh that was made by itself
  std::vector<DimNames> dims;
  std::map<std::string, FlattenedMesh> flattened;  // by name; of a root
};

/// The state of a mesh and its on_meta(). It lives as long as the mesh.
MeshParts& parts_of(const DeviceMesh& mesh);
inline MeshGroups groups_of(const DeviceMesh& mesh) { return parts_of(mesh).groups; }

/// The deleter of meshes.
struct EndMesh {
  std::shared_ptr<MeshParts> parts;
  void operator()(DeviceMesh* mesh);
};

/// The mesh that `mesh` was sliced or flattened from; `mesh` if it was made by itself.
MeshPtr root_of(const DeviceMesh& mesh);
/// For each dim, the dims of the root that it consists of: several for a flattened dim.
std::vector<DimNames> dims_of_root(const DeviceMesh& mesh);

/// The mesh of the same ranks in one dim. The root knows it by its name: root_of(mesh)->submesh({name}). The default name is "dp_tp".
/// Throws: c10::ValueError if a dim or a flattened mesh of other ranks has the name; c10::Error if dims have no names.
MeshPtr flatten(const DeviceMesh& mesh, std::string name = "");
/// As flatten(), but the root does not know the mesh, and its name may be any.
MeshPtr as_line(const DeviceMesh& mesh, const std::string& name);
/// The flattened mesh that `root` knows by `name`, or null.
MeshPtr flattened(const DeviceMesh& root, const std::string& name);
/// All flattened meshes of `root`.
std::vector<MeshPtr> flattened(const DeviceMesh& root);

/// The mesh of the same ranks with dims of these sizes and names in place of one dim. Collective as DeviceMesh::create().
/// Throws: c10::ValueError if the dim does not have the product of the sizes; c10::Error if there are dims without names.
MeshPtr unflatten(const DeviceMesh& mesh, int64_t dim, c10::IntArrayRef sizes, const DimNames& names);
/// The mesh of the dims of all these slices of one mesh, in this order. Throws: c10::Error if there is no such mesh.
MeshPtr concatenate(c10::ArrayRef<MeshPtr> meshes);

/// This rank's coordinate along `dim`. Throws: c10::ValueError on a rank outside the mesh.
int64_t coord_along(const DeviceMesh& mesh, int64_t dim);
/// `dim` in [0, ndim). Throws: c10::IndexError.
int64_t checked_dim(const DeviceMesh& mesh, int64_t dim);

/// All slices of `grid` along `dims`, one per combination of the other coordinates, in row-major order. Dim i of a slice merges the dims in dims[i].
std::vector<RankGrid> slices(const RankGrid& grid, const std::vector<std::vector<int64_t>>& dims);
/// The positions of `dims` in `names`. Throws: UnknownMeshDim.
std::vector<std::vector<int64_t>> positions(const DimNames& names, const std::vector<DimNames>& dims);
/// Makes the groups along all dims of `grid`, in the same order on every rank. Returns this rank's groups.
std::vector<GroupPtr> make_lines(World& world, const RankGrid& grid);

}  // namespace shardwise
