#include "runtime/tensor/device_mesh.h"

#include "runtime/comm/gil_release.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/torch_versions.h"
#include "runtime/tensor/mesh_families.h"
#include "runtime/tensor/unused_meshes.h"
#include "text/check.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>

namespace shardwise {
namespace {

using Line = std::vector<int64_t>;

/// The last entry is for groups that are not the World's: the process groups, or a mark.
using Key = std::tuple<World*, c10::DeviceType, Line, Line, DimNames, std::vector<const void*>>;

std::vector<const void*> marks_of(const DeviceMesh& mesh) {
  static constexpr char kAbsent = 0, kElsewhere = 0;
  if (mesh.groups() == MeshGroups::kAbsent) return {&kAbsent};
  if (mesh.groups() == MeshGroups::kGiven && !mesh.is_member()) return {&kElsewhere};
  std::vector<const void*> result;
  for (const auto& [ranks, group] : mesh.parts().given) result.push_back(group->process_group.get());
  return result;
}

std::mutex registry_mutex;
auto& registry = *new std::map<Key, std::weak_ptr<const DeviceMesh>>;  // never destroyed: meshes may outlive main

/// The list of these ranks that living meshes share. Pre: registry_mutex is held.
std::shared_ptr<const Line> shared_list(Line ranks) {
  static auto* lists = new std::map<Line, std::weak_ptr<const Line>>;  // never destroyed: meshes may outlive main
  std::ranges::sort(ranks);
  std::erase_if(*lists, [](const auto& entry) { return entry.second.expired(); });
  auto& place = (*lists)[ranks];
  auto list = place.lock();
  if (!list) place = list = std::make_shared<const Line>(std::move(ranks));
  return list;
}

void check_names(const RankGrid& grid, const DimNames& names) {
  if (names.empty()) return;
  SW_CHECK_VALUE(names.size() == grid.shape.size(),
                 "[device_mesh] mesh_dim_names [{}] has {} names for a mesh of {} dims. Give one per dim.",
                 fmt::join(names, ", "), names.size(), grid.shape.size());
  for (size_t i = 0; i < names.size(); ++i)
    SW_CHECK_VALUE(std::count(names.begin(), names.end(), names[i]) == 1,
                   "[device_mesh] mesh_dim_names [{}] has \"{}\" twice. Names must differ.", fmt::join(names, ", "),
                   names[i]);
}

}  // namespace

void connect_world(const DeviceMesh& mesh) {
  if (mesh.size() == mesh.world()->size()) return;
  const GroupPtr everyone = mesh.world()->everyone();
  if (has_backend_for(*everyone->process_group, mesh.device_type())) connect(*everyone, "device_mesh", mesh.device());
}

DeviceMesh::DeviceMesh() : parts_(std::make_shared<MeshParts>()) {}

/// Destructors of groups wait for threads, which may need the interpreter's lock, so it is released if groups were given. Otherwise it is kept: the
/// caller may hold another lock that the interpreter lock's next holder waits for.
void DeviceMesh::end(DeviceMesh* mesh) {
  std::optional<GilRelease> no_gil;
  if (mesh->parts_.use_count() == 1 && mesh->parts_->owns_given())
    no_gil.emplace();  // the last of a mesh and its on_meta()
  delete mesh;
}

MeshPtr DeviceMesh::create(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid grid, DimNames names) {
  const MeshPtr mesh = create_by_members(std::move(world), device_type, std::move(grid), std::move(names));
  if (GivenGroups::current() || mesh->groups() != MeshGroups::kWorlds) return mesh;
  connect_world(*mesh);
  note_family(*mesh);
  return mesh;
}

namespace {
std::atomic<std::optional<c10::DeviceType>> planned_for;
}

MeshPtr DeviceMesh::create_by_members(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid grid,
                                      DimNames names) {
  check(grid);
  check_names(grid, names);
  if (world->size() == 1) check_has_ranks(*world, grid.shape);  // perhaps started without torchrun
  for (int64_t rank : grid.ranks)
    SW_CHECK_VALUE(rank < world->size(), "[device_mesh] rank {} is not in the world of {} ranks. Use ranks in [0, {}).",
                   rank, world->size(), world->size());

  if (planned_for.load()) device_type = c10::DeviceType::Meta;
  const std::shared_ptr<DeviceMesh> mesh(new DeviceMesh, &end);
  mesh->coord_ = grid.coord_of(world->rank());
  const auto* scope = GivenGroups::current();
  if (scope) {
    auto& given = mesh->parts_->given;
    mesh->own_groups_ = make_groups(*world, grid);
    const auto keep = [&](const GroupPtr& group) {
      if (group && scope->groups().contains(group->ranks)) given[group->ranks] = group;
    };
    std::ranges::for_each(mesh->own_groups_.lines, keep);
    keep(mesh->own_groups_.everyone);
    if (!given.empty() || !mesh->is_member()) mesh->groups_ = MeshGroups::kGiven;
    if (scope->are_absent()) mesh->groups_ = MeshGroups::kAbsent;
  }
  Key key{world.get(), device_type, Line(grid.shape.begin(), grid.shape.end()), grid.ranks, names, marks_of(*mesh)};
  {
    std::lock_guard lock(registry_mutex);
    if (auto found = registry.find(key); found != registry.end())
      if (auto known = found->second.lock()) return known;
  }
  if (!scope) mesh->own_groups_ = make_groups(*world, grid);
  mesh->grid_ = std::make_shared<const RankGrid>(std::move(grid));
  mesh->world_ = std::move(world);
  mesh->device_type_ = device_type;
  if (mesh->is_meta()) mesh->become_meta();
  mesh->names_ = std::move(names);

  std::lock_guard lock(registry_mutex);
  std::erase_if(registry, [](const auto& entry) { return entry.second.expired(); });
  auto& place = registry[key];
  if (auto other = place.lock()) return other;  // another thread has made it, over the same groups
  mesh->ascending_ranks_ = shared_list(mesh->grid_->ranks);
  place = mesh;
  count_mesh();
  return mesh;
}

void DeviceMesh::become_meta() {
  device_type_ = c10::DeviceType::Meta;
  sending_groups_ = own_groups_;
  for (GroupPtr& line : own_groups_.lines) line = without_sending(line);
  own_groups_.everyone = without_sending(own_groups_.everyone);
}

c10::DeviceType DeviceMesh::planned_type() const {
  const c10::DeviceType type = with_memory_ ? with_memory_->device_type_ : device_type_;
  return type == c10::DeviceType::Meta ? planned_device_on_meta() : type;
}

c10::DeviceType planned_device_on_meta() { return planned_for.load().value_or(c10::DeviceType::CUDA); }

void DeviceMesh::plan_for(std::optional<c10::DeviceType> device_type) { planned_for = device_type; }

MeshPtr DeviceMesh::on_meta() const {
  if (is_meta()) return shared_from_this();
  const std::lock_guard lock(registry_mutex);
  if (auto mesh = on_meta_.lock()) return mesh;
  const std::shared_ptr<DeviceMesh> mesh(new DeviceMesh(*this), &end);
  mesh->become_meta();
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

bool DeviceMesh::has_dim(const std::string& name) const { return std::ranges::count(names_, name) > 0; }

int64_t DeviceMesh::dim_of(const std::string& name) const {
  const auto found = std::ranges::find(names_, name);
  if (found == names_.end())
    throw UnknownMeshDim(
        {__func__, __FILE__, __LINE__},
        fmt::format("[device_mesh] no mesh dim is called \"{}\": the mesh is {}.", name, to_string(*this)));
  return found - names_.begin();
}

int64_t DeviceMesh::checked_dim(int64_t mesh_dim) const {
  SW_CHECK_INDEX(mesh_dim >= -ndim() && mesh_dim < ndim(),
                 "[device_mesh] mesh dim {} does not exist: the mesh is {}. Use a dim in [{}, {}).", mesh_dim,
                 to_string(*this), -ndim(), ndim());
  return mesh_dim < 0 ? mesh_dim + ndim() : mesh_dim;
}

int64_t DeviceMesh::coord_along(int64_t mesh_dim) const {
  SW_CHECK_VALUE(coord_,
                 "[device_mesh] rank {} is outside the mesh {}: it has no place in it. Ask get_coordinate(), which has "
                 "no value there.",
                 rank(), to_string(*this));
  return (*coord_)[mesh_dim];
}

MeshPtr world_mesh(c10::DeviceType device_type) {
  const auto world = World::current();
  return DeviceMesh::create(world, device_type, {{world->size()}, world->everyone()->ranks});
}

void check_has_ranks(const World& world, c10::IntArrayRef mesh_shape) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t n_ranks = 1;
  for (const int64_t extent : mesh_shape) n_ranks = n_ranks > kMax / extent ? kMax : n_ranks * extent;
  if (n_ranks <= world.size()) return;
  const std::string number = n_ranks == kMax ? "2^63 or more" : std::to_string(n_ranks);
  SW_CHECK_VALUE(
      world.size() > 1 || World::is_thread(),
      "[device_mesh] the mesh [{}] needs {} ranks, and this program is one process. Start it with torchrun "
      "--nproc-per-node {} program.py, or a C++ program with torchrun --no-python --nproc-per-node {} ./program.",
      fmt::join(mesh_shape, ", "), number, number, number);
  SW_CHECK_VALUE(
      false,
      "[device_mesh] the mesh [{}] needs {} ranks, and the world has {}. Use a smaller mesh, or start more ranks.",
      fmt::join(mesh_shape, ", "), number, world.size());
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
  if (have_same_ranks(mesh, other) || mesh.size() == mesh.world()->size()) return true;
  return mesh.size() > other.size() && std::ranges::includes(*mesh.ascending_ranks(), *other.ascending_ranks());
}

void check_same_mesh(std::string_view op, const MeshPtr& mesh, const MeshPtr& other) {
  SW_CHECK_VALUE(mesh->is_meta() == other->is_meta(),
                 "[{}] operands live on meta and on {}. Give all of them memory, with torch.empty_like(x, "
                 "device=\"{}\") or Module.to_empty(), or none: x.to(\"meta\").",
                 op, c10::DeviceTypeName((mesh->is_meta() ? other : mesh)->device_type(), true),
                 c10::DeviceTypeName((mesh->is_meta() ? other : mesh)->device_type(), true));
  SW_CHECK(mesh == other,  // a RuntimeError, as torch's
           "[{}] operands live on different meshes: {} and {}. Move one with redistribute(mesh, ...).", op,
           to_string(*mesh), to_string(*other));
}

}  // namespace shardwise
