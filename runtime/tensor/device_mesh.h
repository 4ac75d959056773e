// runtime/tensor/device_mesh.h: the ranks of a program (or some of them) arranged in a grid, with a group per grid dimension.
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

/// An n-D grid of ranks, in any order: shards follow that order. One object per meaning and world, so that
/// meshes compare by pointer. Ranks outside it may hold it too; they own nothing.
///
///   auto mesh = DeviceMesh::create(World::current(), c10::DeviceType::CPU, {{2, 2}, {0, 1, 2, 3}}, {"dp", "tp"});
///   mesh->group(1)   // ranks 0,1 on ranks 0 and 1; ranks 2,3 on the others
class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  /// Collective over the world where a group is new: every rank calls it with the same arguments.
  /// Throws: c10::ValueError for duplicate or unknown ranks, a shape that does not fit, or names that do not.
  static MeshPtr create(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid grid,
                        std::vector<std::string> names = {});

  c10::DeviceType device_type() const { return device_type_; }

  /// The mesh of tensors whose pieces have no memory: the same ranks and groups, over which nothing is sent for them, and
  /// device_type() meta. Each such tensor is on one, so that ranks know of it that hold no piece. Itself where it is such.
  MeshPtr on_meta() const;
  /// The mesh that on_meta() was called on; itself for all others.
  MeshPtr with_memory() const;
  /// The one of the two for pieces on `device_type`.
  MeshPtr on(c10::DeviceType device_type) const;
  bool is_meta() const { return device_type_ == c10::DeviceType::Meta; }

  /// The device of this rank's pieces: the type's current one.
  c10::Device device() const;
  const RankGrid& grid() const { return *grid_; }
  const std::shared_ptr<const RankGrid>& grid_ptr() const { return grid_; }
  /// Empty where the dimensions have no names.
  const std::vector<std::string>& names() const { return names_; }
  int64_t ndim() const { return static_cast<int64_t>(grid_->shape.size()); }
  int64_t size() const { return grid_->size(); }
  int64_t size(int64_t mesh_dim) const { return grid_->shape[mesh_dim]; }

  const std::shared_ptr<World>& world() const { return world_; }
  /// This rank, global.
  int64_t rank() const { return world_->rank(); }
  bool is_member() const { return coord_.has_value(); }
  /// This rank's coordinate; nothing on a non-member.
  const std::optional<Dims>& coord() const { return coord_; }

  /// The group of all members, null on a non-member.
  const GroupPtr& group() const { return everyone_; }
  /// The group along one mesh dimension through this rank, null on a non-member.
  const GroupPtr& group(int64_t mesh_dim) const { return lines_[mesh_dim]; }

  /// The mesh of the named dimensions through this rank (through coordinate 0 on a non-member). Collective, as create().
  /// Throws: c10::ValueError for an unknown name.
  MeshPtr submesh(const std::vector<std::string>& names) const;
  /// The dimension called `name`. Throws: c10::ValueError listing the names.
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
  MeshPtr with_memory_;                              // of one on meta
  mutable std::weak_ptr<const DeviceMesh> on_meta_;  // of one with memory
};

/// "(dp=2, tp=2)", or "(2, 2)" without names; other rank orders than 0, 1, 2, … are added: "(4: ranks [2, 0, 1, 3])".
std::string to_string(const DeviceMesh& mesh);

/// True where every rank of `other` is one of `mesh`. The same on all ranks that know both.
bool has_all_ranks_of(const DeviceMesh& mesh, const DeviceMesh& other);

/// Throws: c10::ValueError where the operands of `op` live on two meshes: "[op] operands live on different meshes: a and b. ...",
/// or one on meta.
void check_same_mesh(std::string_view op, const MeshPtr& mesh, const MeshPtr& other);

}  // namespace shardwise
