// runtime/tensor/mesh_slices.h: the grids of slices, and a mesh's record of its root, its slices and its groups.
#pragma once

#include "runtime/comm/given_groups.h"
#include "runtime/tensor/device_mesh.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace shardwise {

/// A dim of a root that merges several of its dims.
struct FlattenedDim {
  DimNames dims;
  GivenGroups::ByRanks given;  // its groups that are not the World's
};

/// The mesh with memory that a program passed. Dim k of the reordered mesh is its dim order[k].
struct ReorderedFrom {
  MeshPtr mesh;
  std::vector<int64_t> order;
};

/// The state of a mesh besides its grid.
struct MeshParts {
  GivenGroups::ByRanks given;  // the mesh's groups that are not the World's

  std::mutex mutex;        // guards the members below
  bool is_by_all = false;  // all ranks made it by itself
  bool is_root = false;    // all ranks made it, or it has slices: it does not become a slice itself
  MeshPtr root;            // null for a root
  std::vector<DimNames> dims;
  std::map<std::string, FlattenedDim> flattened;               // of a root, by name
  std::map<DimNames, std::weak_ptr<const DeviceMesh>> slices;  // by names
  std::map<int64_t, MeshPtr> lines;                            // by mesh dim
  ReorderedFrom origin;                                        // of a reordered mesh (reordered_mesh.h)

  bool owns_given() const {
    return !given.empty() ||
           std::ranges::any_of(flattened, [](const auto& each) { return !each.second.given.empty(); });
  }
};

/// All slices of `grid` along `dims`, one per combination of the other coordinates, in row-major order.
std::vector<RankGrid> slices(const RankGrid& grid, const MergedDims& dims);
/// A list of one name for each name: the dims of a mesh whose root is itself.
std::vector<DimNames> each_alone(const DimNames& names);
/// The positions of `dims` in `names`. Throws: UnknownMeshDim.
MergedDims positions(const DimNames& names, const std::vector<DimNames>& dims);
/// Makes the groups along all dims of `grid`, in the same order on every rank, and the group of all its ranks, if the World does not make it when
/// it is needed (late_group.h). Returns this rank's groups.
GridGroups make_groups(World& world, const RankGrid& grid);
/// Connects the group of the world while all ranks are present. Moves to another mesh use it, and ranks outside both meshes stay away from them.
void connect_world(const DeviceMesh& mesh);

}  // namespace shardwise
