// runtime/tensor/device_mesh.h: ranks of a program in a grid, with a communication group per grid dimension.
//
//   auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7}}, {"pp", "dp", "tp"});
//   mesh->group(2)                              // ranks 0,1 on ranks 0 and 1; ranks 2,3 on ranks 2 and 3; ...
//   MeshPtr part = mesh->submesh({"dp", "tp"}); // part->root() is the mesh
//   part->flatten("mp");                        // mesh->submesh({"pp", "mp"}) has the two dims as one
#pragma once

#include "placements/layout.h"
#include "runtime/comm/world.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

class DeviceMesh;
struct MeshParts;
using MeshPtr = std::shared_ptr<const DeviceMesh>;
using DimNames = std::vector<std::string>;
/// For each dim of a slice, the numbers of the mesh's dims that it merges.
using MergedDims = std::vector<std::vector<int64_t>>;

/// Thrown for a name that no dim of a mesh has. In Python it is a KeyError.
struct UnknownMeshDim : c10::ValueError {
  using ValueError::ValueError;
};

/// The groups over which a mesh and its slices communicate.
enum class MeshGroups {
  kWorlds,  // the World's, which all ranks make
  kGiven,   // GivenGroups, and groups that the members of the mesh make by themselves
  kAbsent,  // none
};

/// This rank's groups in a grid; null on a non-member.
struct GridGroups {
  std::vector<GroupPtr> lines;  // along each dim
  GroupPtr everyone;
};

/// An n-D grid of ranks, in any order; shards are assigned in that order. Equal meshes of one world are one object, so meshes compare by
/// pointer. Ranks outside the mesh may hold the object too; they own no shards.
///
/// A mesh that was made by itself is a root. A slice owns its root, and a root owns none of its slices. Slices communicate over the groups of their
/// root: all ranks must make them if these are the World's; only the members, if they were given.
class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  /// Collective over the world if a group is new: every rank calls it with the same arguments. Under GivenGroups, as create_by_members().
  /// Throws: c10::ValueError for duplicate or unknown ranks, and for a shape or names that do not fit.
  static MeshPtr create(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid grid, DimNames names = {});
  /// The same, but other ranks need not call it. Pre: the World has its groups, or GivenGroups are open.
  static MeshPtr create_by_members(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid grid,
                                   DimNames names = {});
  /// The mesh with this rank, of the meshes of the ranks every[0], every[1], ... Collective as create(): all ranks make all these meshes.
  static MeshPtr create_among(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid every,
                              const DimNames& names);

  c10::DeviceType device_type() const { return device_type_; }

  /// The mesh for tensors whose pieces have no memory: the same ranks, and device_type() meta. Its groups send nothing (Group::sends), so
  /// what happens to such tensors is planned and counted only. They have a mesh of their own, so that ranks without pieces also know.
  /// Returns this mesh if it is on meta already.
  MeshPtr on_meta() const;
  /// The mesh that on_meta() was called on; this mesh if it is not on meta, or was made on meta.
  MeshPtr with_memory() const;
  /// The one of these two meshes for pieces on `device_type`.
  MeshPtr on(c10::DeviceType device_type) const;
  bool is_meta() const { return device_type_ == c10::DeviceType::Meta; }
  /// The kind of device that the program is planned for: device_type() of with_memory(). For a mesh that was made on meta, that of plan_for(),
  /// or CUDA.
  c10::DeviceType planned_type() const;
  /// From now on every mesh, whatever its device, is made on meta and planned for this kind of device; std::nullopt ends it.
  static void plan_for(std::optional<c10::DeviceType> device_type);

  /// The device of this rank's pieces: the current device of the type.
  c10::Device device() const;
  const RankGrid& grid() const { return *grid_; }
  const std::shared_ptr<const RankGrid>& grid_ptr() const { return grid_; }
  /// The ranks in ascending order. Meshes of the same ranks have the same list, which is compared by pointer.
  const std::shared_ptr<const std::vector<int64_t>>& ascending_ranks() const { return ascending_ranks_; }
  /// Empty if the dimensions have no names.
  const DimNames& names() const { return names_; }
  int64_t ndim() const { return static_cast<int64_t>(grid_->shape.size()); }
  int64_t size() const { return grid_->size(); }
  int64_t size(int64_t mesh_dim) const { return grid_->shape[mesh_dim]; }
  bool has_dim(const std::string& name) const;
  /// The dimension with this name. Throws: UnknownMeshDim listing the names.
  int64_t dim_of(const std::string& name) const;
  /// `mesh_dim` in [0, ndim). Throws: c10::IndexError.
  int64_t checked_dim(int64_t mesh_dim) const;

  const std::shared_ptr<World>& world() const { return world_; }
  /// The global rank of this process or thread.
  int64_t rank() const { return world_->rank(); }
  bool is_member() const { return coord_.has_value(); }
  /// This rank's coordinate; nothing on a non-member.
  const std::optional<Dims>& coord() const { return coord_; }
  /// This rank's coordinate along a dim. Throws: c10::ValueError on a non-member.
  int64_t coord_along(int64_t mesh_dim) const;

  MeshGroups groups() const { return groups_; }
  /// The group of all members; null on a non-member.
  const GroupPtr& group() const { return own_groups_.everyone; }
  /// The group of this rank's line along one mesh dimension; null on a non-member.
  const GroupPtr& group(int64_t mesh_dim) const { return own_groups_.lines[mesh_dim]; }
  /// The same with its process group, also of a mesh on meta.
  const GroupPtr& process_group(int64_t mesh_dim) const {
    return (is_meta() ? sending_groups_ : own_groups_).lines[mesh_dim];
  }

  /// The mesh that this one was sliced or flattened from; itself if it was made by itself.
  MeshPtr root() const;
  /// For each dim, the dims of the root that it consists of: several for a flattened dim.
  std::vector<DimNames> dims_of_root() const;

  /// The mesh of the named dims, or flattened ones, through this rank (through coordinate 0 on a non-member). Collective as create().
  /// Throws: UnknownMeshDim; c10::ValueError for a name twice; c10::Error if dims have no names.
  MeshPtr submesh(const DimNames& names) const;
  /// The 1-D mesh, without a name, of the ranks along `mesh_dim` through this rank (or coordinate 0). Sends nothing.
  MeshPtr line(int64_t mesh_dim) const;
  /// The mesh of some dims through this rank with any names. Its root is itself. Sends nothing if this mesh has its groups: of all ranks, and
  /// along a dim.
  MeshPtr part(const MergedDims& dims, DimNames names) const;

  /// The mesh of the same ranks in one dim. The root knows it by its name: root()->submesh({name}). The default name is "dp_tp".
  /// Throws: c10::ValueError if a dim or a flattened mesh of other ranks has the name; c10::Error if dims have no names.
  MeshPtr flatten(std::string name = "") const;
  /// As flatten(), but the root does not know the mesh, and its name may be any.
  MeshPtr as_line(const std::string& name) const;
  /// The names of the flattened meshes that this root knows.
  DimNames flattened() const;

  /// The mesh of the same ranks with dims of these sizes and names in place of one dim. Collective as create(), for all slices of the root.
  /// Throws: c10::ValueError if the dim does not exist or does not have the product of the sizes; c10::Error if there are dims without names.
  MeshPtr unflatten(int64_t mesh_dim, c10::IntArrayRef sizes, const DimNames& names) const;
  /// The mesh of the dims of all these slices of one mesh, in this order. Throws: c10::Error if there is no such mesh.
  static MeshPtr concatenate(c10::ArrayRef<MeshPtr> meshes);

  /// The record of the mesh's root, slices and groups (mesh_slices.h).
  MeshParts& parts() const { return *parts_; }

 private:
  DeviceMesh();
  static void end(DeviceMesh* mesh);
  void become_meta();

  std::shared_ptr<World> world_;
  c10::DeviceType device_type_ = c10::DeviceType::CPU;
  std::shared_ptr<const RankGrid> grid_;
  std::shared_ptr<const std::vector<int64_t>> ascending_ranks_;
  DimNames names_;
  std::optional<Dims> coord_;
  MeshGroups groups_ = MeshGroups::kWorlds;
  GridGroups own_groups_;
  GridGroups sending_groups_;                        // only set for a mesh on meta
  std::shared_ptr<MeshParts> parts_;                 // shared with on_meta()
  MeshPtr with_memory_;                              // only set for a mesh on meta
  mutable std::weak_ptr<const DeviceMesh> on_meta_;  // only set for a mesh with memory
};

/// The kind of device for which plain tensors on meta are planned: that of DeviceMesh::plan_for(), or else CUDA.
c10::DeviceType planned_device_on_meta();

/// A 1-D mesh of all ranks of this thread's world.
MeshPtr world_mesh(c10::DeviceType device_type);

/// Throws: c10::ValueError for a shape with more ranks than the world. If the program is a single process, the error says how to start
/// enough. Extents are at least 1; their product may overflow.
void check_has_ranks(const World& world, c10::IntArrayRef mesh_shape);

/// "(dp=2, tp=2)", or "(2, 2)" without names. Rank orders other than 0, 1, 2, … are added: "(4: ranks [2, 0, 1, 3])".
std::string to_string(const DeviceMesh& mesh);

/// True if both meshes have the same ranks.
inline bool have_same_ranks(const DeviceMesh& mesh, const DeviceMesh& other) {
  return mesh.ascending_ranks() == other.ascending_ranks();
}
/// True if every rank of `other` is in `mesh`. Equal on all ranks that know both meshes.
bool has_all_ranks_of(const DeviceMesh& mesh, const DeviceMesh& other);

/// Throws: c10::Error if the operands of `op` are on two meshes, "[op] operands live on different meshes: a and b. ...", c10::ValueError if one
/// of them is on meta.
void check_same_mesh(std::string_view op, const MeshPtr& mesh, const MeshPtr& other);

}  // namespace shardwise
