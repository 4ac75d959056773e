#include "runtime/tensor/device_mesh.h"

#include "runtime/comm/gil_release.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/torch_versions.h"
#include "runtime/tensor/mesh_ranks.h"
#include "runtime/tensor/mesh_slices.h"
#include "runtime/tensor/unused_meshes.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>

namespace shardwise {
namespace {

using Line = std::vector<int64_t>;

/// Connects the group of the world while all ranks are present. Moves to another mesh use it, and ranks outside both meshes stay away from
/// them.
void connect_world(World& world, const DeviceMesh& mesh) {
  if (mesh.size() == world.size() || GivenGroups::current()) return;
  std::vector<int64_t> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const GroupPtr everyone = world.group(ranks);
  if (has_backend_for(*everyone->process_group, mesh.device_type())) connect(*everyone, "device_mesh", mesh.device());
}

/// The last entry is for groups that are not the World's: the process groups, or a mark.
using Key = std::tuple<World*, c10::DeviceType, Line, Line, DimNames, std::vector<const void*>>;

std::vector<const void*> marks_of(const MeshParts& parts, bool is_member) {
  static constexpr char kAbsent = 0, kElsewhere = 0;
  if (parts.groups == MeshGroups::kAbsent) return {&kAbsent};
  if (parts.groups == MeshGroups::kGiven && !is_member) return {&kElsewhere};
  std::vector<const void*> result;
  for (const auto& [ranks, group] : parts.given) result.push_back(group->process_group.get());
  return result;
}

/// Keeps `group` in `parts` if it is a given one, or one that its members made alone.
void keep_given(const GivenGroups& scope, const GroupPtr& group, MeshParts& parts) {
  if (group && (GivenGroups::is_by_members(group) || scope.groups().contains(group->ranks)))
    parts.given[group->ranks] = group;
}

std::mutex registry_mutex;
std::map<Key, std::weak_ptr<const DeviceMesh>>& registry() {
  static auto* meshes = new std::map<Key, std::weak_ptr<const DeviceMesh>>;  // never destroyed: meshes may outlive main
  return *meshes;
}

void check_names(const RankGrid& grid, const DimNames& names) {
  if (names.empty()) return;
  TORCH_CHECK_VALUE(
      names.size() == grid.shape.size(),
      fmt::format("[device_mesh] mesh_dim_names [{}] has {} names for a mesh of {} dims. Give one per dim.",
                  fmt::join(names, ", "), names.size(), grid.shape.size()));
  for (size_t i = 0; i < names.size(); ++i)
    TORCH_CHECK_VALUE(std::count(names.begin(), names.end(), names[i]) == 1,
                      fmt::format("[device_mesh] mesh_dim_names [{}] has \"{}\" twice. Names must differ.",
                                  fmt::join(names, ", "), names[i]));
}

}  // namespace

MeshPtr DeviceMesh::create(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid grid,
                           std::vector<std::string> names) {
  check(grid);
  check_names(grid, names);
  if (world->size() == 1) check_has_ranks(*world, grid.shape);  // perhaps started without torchrun
  for (int64_t rank : grid.ranks)
    TORCH_CHECK_VALUE(rank < world->size(),
                      fmt::format("[device_mesh] rank {} is not in the world of {} ranks. Use ranks in [0, {}).", rank,
                                  world->size(), world->size()));

  const auto parts = std::make_shared<MeshParts>();
  const std::shared_ptr<DeviceMesh> mesh(new DeviceMesh, EndMesh{parts});
  mesh->coord_ = grid.coord_of(world->rank());
  const auto* scope = GivenGroups::current();
  const auto find_groups = [&] {
    mesh->lines_ = make_lines(*world, grid);
    mesh->everyone_ = world->group(grid.ranks);
  };
  if (scope) {
    find_groups();
    for (const GroupPtr& group : mesh->lines_) keep_given(*scope, group, *parts);
    keep_given(*scope, mesh->everyone_, *parts);
    if (!parts->given.empty() || !mesh->is_member()) parts->groups = MeshGroups::kGiven;
    if (scope->are_absent()) parts->groups = MeshGroups::kAbsent;
  }
  Key key{world.get(), device_type, Line(grid.shape.begin(), grid.shape.end()),
          grid.ranks,  names,       marks_of(*parts, mesh->is_member())};
  {
    std::lock_guard lock(registry_mutex);
    if (auto found = registry().find(key); found != registry().end())
      if (auto known = found->second.lock()) return known;
  }
  if (!scope) find_groups();
  mesh->grid_ = std::make_shared<const RankGrid>(std::move(grid));
  mesh->world_ = std::move(world);
  mesh->device_type_ = device_type;
  mesh->names_ = std::move(names);
  connect_world(*mesh->world_, *mesh);

  std::lock_guard lock(registry_mutex);
  std::erase_if(registry(), [](const auto& entry) { return entry.second.expired(); });
  auto& place = registry()[key];
  if (auto other = place.lock()) return other;  // another thread has made it, over the same groups
  place = mesh;
  count_mesh();
  return mesh;
}

MeshPtr DeviceMesh::on_meta() const {
  if (is_meta()) return shared_from_this();
  const std::lock_guard lock(registry_mutex);
  if (auto mesh = on_meta_.lock()) return mesh;
  const std::shared_ptr<DeviceMesh> mesh(new DeviceMesh(*this));
  mesh->device_type_ = c10::DeviceType::Meta;
  mesh->with_memory_ = shared_from_this();
  on_meta_ = mesh;
  return mesh;
}

MeshPtr DeviceMesh::with_memory() const { return with_memory_ ? with_memory_ : shared_from_this(); }

MeshPtr DeviceMesh::on(c10::DeviceType device_type) const {
  return device_type == c10::DeviceType::Meta ? on_meta() : with_memory();
}

c10::Device DeviceMesh::device() const {
  if (device_type_ == c10::DeviceType::CPU || is_meta()) return {device_type_};
  return c10::impl::VirtualGuardImpl(device_type_).getDevice();
}

int64_t DeviceMesh::dim_of(const std::string& name) const {
  const auto found = std::ranges::find(names_, name);
  if (found == names_.end())
    throw UnknownMeshDim(
        {__func__, __FILE__, __LINE__},
        fmt::format("[device_mesh] no mesh dim is called \"{}\": the mesh is {}.", name, to_string(*this)));
  return found - names_.begin();
}

std::string to_string(const DeviceMesh& mesh) {
  std::vector<std::string> dims;
  for (int64_t i = 0; i < mesh.ndim(); ++i)
    dims.push_back(mesh.names().empty() ? std::to_string(mesh.size(i))
                                        : fmt::format("{}={}", mesh.names()[i], mesh.size(i)));
  const auto& ranks = mesh.grid().ranks;
  std::vector<int64_t> usual(ranks.size());
  std::iota(usual.begin(), usual.end(), 0);
  if (ranks == usual) return fmt::format("({})", fmt::join(dims, ", "));
  return fmt::format("({}: ranks [{}])", fmt::join(dims, ", "), fmt::join(ranks, ", "));
}

bool has_all_ranks_of(const DeviceMesh& mesh, const DeviceMesh& other) {
  if (&mesh == &other) return true;
  std::vector<int64_t> ranks = mesh.grid().ranks, others = other.grid().ranks;
  std::ranges::sort(ranks);
  std::ranges::sort(others);
  return std::ranges::includes(ranks, others);
}

void check_same_mesh(std::string_view op, const MeshPtr& mesh, const MeshPtr& other) {
  TORCH_CHECK_VALUE(
      mesh->is_meta() == other->is_meta(),
      fmt::format(
          "[{}] operands live on meta and on {}. Give all of them memory, with torch.empty_like(x, device=\"{}\") or "
          "Module.to_empty(), or none: x.to(\"meta\").",
          op, c10::DeviceTypeName((mesh->is_meta() ? other : mesh)->device_type(), true),
          c10::DeviceTypeName((mesh->is_meta() ? other : mesh)->device_type(), true)));
  TORCH_CHECK(mesh == other,  // a RuntimeError, as torch's
              fmt::format("[{}] operands live on different meshes: {} and {}. Move one with redistribute(mesh, ...).",
                          op, to_string(*mesh), to_string(*other)));
}

}  // namespace shardwise
