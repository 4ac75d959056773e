// runtime/tensor/device_mesh.h: ranks of a program in a grid, with a communication group per grid dimension.
#pragma once

#include "placements/layout.h"
#include "runtime/comm/world.h"

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

class DeviceMesh;
using MeshPtr = std::shared_ptr<const DeviceMesh>;

/// An n-D grid of ranks, in any order; shards are assigned in that order. Equal meshes of one world are one object, so meshes compare by
/// pointer. Ranks outside the mesh may hold the object too; they own no shards.
///
///   auto mesh = DeviceMesh::create(World::current(), c10::DeviceType::CPU, {{2, 2}, {0, 1, 2, 3}}, {"dp", "tp"});
///   mesh->group(1)   // ranks 0,1 on ranks 0 and 1; ranks 2,3 on the others
class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  /// Collective over the world if a group is new: every rank calls it with the same arguments.
  /// Throws: c10::ValueError for duplicate or unknown ranks, and for a shape or names that do not fit.
  static MeshPtr create(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid grid,
                        std::vector<std::string> names = {});

  c10::DeviceType device_type() const { return device_type_; }

  /// The mesh for tensors whose pieces have no memory: the same ranks and groups, and device_type() meta. Nothing is sent for such tensors.
  /// They have a mesh of their own, so that ranks without pieces also know. Returns this mesh if it is on meta already.
  MeshPtr on_meta() const;
  /// The mesh that on_meta() was called on; this mesh if it is not on meta.
  MeshPtr with_memory() const;
  /// The one of these two meshes for pieces on `device_type`.
  MeshPtr on(c10::DeviceType device_type) const;
  bool is_meta() const { return device_type_ == c10::DeviceType::Meta; }

  /// The device of this rank's pieces: the current device of the type.
  c10::Device device() const;
  const RankGrid& grid() const { return *grid_; }
  const std::shared_ptr<const RankGrid>& grid_ptr() const { return grid_; }
  /// Empty if the dimensions have no names.
  const std::vector<std::string>& names() const { return names_; }
  int64_t ndim() const { return static_cast<int64_t>(grid_->shape.size()); }
  int64_t size() const { return grid_->size(); }
  int64_t size(int64_t mesh_dim) const { return grid_->shape[mesh_dim]; }

  const std::shared_ptr<World>& world() const { return world_; }
  /// The global rank of this process or thread.
  int64_t rank() const { return world_->rank(); }
  bool is_member() const { return coord_.has_value(); }
  /// This rank's coordinate; nothing on a non-member.
  const std::optional<Dims>& coord() const { return coord_; }

  /// The group of all members; null on a non-member.
  const GroupPtr& group() const { return everyone_; }
  /// The group of this rank's line along one mesh dimension; null on a non-member.
  const GroupPtr& group(int64_t mesh_dim) const { return lines_[mesh_dim]; }

  /// The mesh of the named dimensions through this rank (through coordinate 0 on a non-member). Collective as create().
  /// Throws: c10::ValueError for an unknown name.
  MeshPtr submesh(const std::vector<std::string>& names) const;
  /// The dimension with this name. Throws: c10::ValueError listing the names.
  int64_t dim_of(const std::string& name) const;

 private:
  DeviceMesh() = default;

  std::shared_ptr<World> world_;
  c10::DeviceType device_type_ = c10::DeviceType::CPU;
  std::shared_ptr<const RankGrid> grid_;
  std::vector<std::string> names_;
  std::optional<Dims> coord_;
  GroupPtr everyone_;
  std::vector<GroupPtr> lines_;
  MeshPtr with_memory_;                              // only set for a mesh on meta
  mutable std::weak_ptr<const DeviceMesh> on_meta_;  // only set for a mesh with memory
};

/// "(dp=2, tp=2)", or "(2, 2)" without names. Rank orders other than 0, 1, 2, … are added: "(4: ranks [2, 0, 1, 3])".
std::string to_string(const DeviceMesh& mesh);

/// True if every rank of `other` is in `mesh`. Equal on all ranks that know both meshes.
bool has_all_ranks_of(const DeviceMesh& mesh, const DeviceMesh& other);

/// Throws: c10::Error if the operands of `op` are on two meshes, "[op] operands live on different meshes: a and b. ...", c10::ValueError if one
/// of them is on meta.
void check_same_mesh(std::string_view op, const MeshPtr& mesh, const MeshPtr& other);

}  // namespace shardwise
