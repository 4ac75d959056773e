#include "runtime/tensor/device_mesh.h"

#include "runtime/comm/gil_release.h"
#include "runtime/comm/given_groups.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/torch_versions.h"
#include "runtime/tensor/mesh_attachment.h"
#include "runtime/tensor/mesh_ranks.h"
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

/// The sub-grids with the dims `kept` of `grid`, one per combination of the other coordinates, in row-major order.
std::vector<RankGrid> slices(const RankGrid& grid, c10::ArrayRef<int64_t> kept) {
  Dims strides(grid.shape.size(), 1);
  for (auto i = static_cast<int64_t>(grid.shape.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * grid.shape[i + 1];

  auto offsets_of = [&](c10::ArrayRef<int64_t> dims) {
    std::vector<int64_t> offsets{0};
    for (int64_t dim : dims) {
      std::vector<int64_t> next;
      for (int64_t offset : offsets)
        for (int64_t i = 0; i < grid.shape[dim]; ++i) next.push_back(offset + i * strides[dim]);
      offsets = std::move(next);
    }
    return offsets;
  };

  std::vector<int64_t> fixed;
  for (int64_t dim = 0; dim < static_cast<int64_t>(grid.shape.size()); ++dim)
    if (!std::ranges::count(kept, dim)) fixed.push_back(dim);

  std::vector<RankGrid> result;
  for (int64_t base : offsets_of(fixed)) {
    RankGrid slice;
    for (int64_t dim : kept) slice.shape.push_back(grid.shape[dim]);
    for (int64_t offset : offsets_of(kept)) slice.ranks.push_back(grid.ranks[base + offset]);
    result.push_back(std::move(slice));
  }
  return result;
}

/// True if `ranks` (ascending) are those of a line along one dim of `grid`, or all of its ranks.
bool is_along(const RankGrid& grid, const Line& ranks) {
  const auto has_these = [&](RankGrid part) {
    std::ranges::sort(part.ranks);
    return part.ranks == ranks;
  };
  if (has_these(grid)) return true;
  for (int64_t dim = 0; dim < static_cast<int64_t>(grid.shape.size()); ++dim)
    if (std::ranges::any_of(slices(grid, dim), has_these)) return true;
  return false;
}

/// Makes every group that `grid` needs, in the same order on every rank. Returns this rank's groups.
std::vector<GroupPtr> make_lines(World& world, const RankGrid& grid) {
  std::vector<GroupPtr> mine(grid.shape.size());
  for (int64_t dim = 0; dim < static_cast<int64_t>(grid.shape.size()); ++dim)
    for (const RankGrid& line : slices(grid, dim))
      if (auto group = world.group(line.ranks)) mine[dim] = group;
  return mine;
}

/// Connects the group of the world while all ranks are present. Moves to another mesh use it, and ranks outside both meshes stay away from
/// them.
void connect_world(World& world, const DeviceMesh& mesh) {
  if (mesh.size() == world.size() || GivenGroups::current()) return;
  std::vector<int64_t> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const GroupPtr everyone = world.group(ranks);
  if (has_backend_for(*everyone->process_group, mesh.device_type())) connect(*everyone, "device_mesh", mesh.device());
}

/// The last entry: the given process groups, or a mark if there are none. Such meshes differ from those over the World's groups.
using Key = std::tuple<World*, c10::DeviceType, Line, Line, std::vector<std::string>, std::vector<const void*>>;

std::vector<const void*> given_groups() {
  static constexpr char kAbsent = 0;
  std::vector<const void*> result;
  const auto* given = GivenGroups::current();
  if (given && given->are_absent()) result.push_back(&kAbsent);
  if (given)
    for (const auto& [ranks, group] : given->groups()) result.push_back(group->process_group.get());
  return result;
}

/// The groups that a mesh was made over in place of the World's. Its submeshes use them too.
struct Given {
  GivenGroups::ByRanks groups;
  bool are_absent = false;
};

std::mutex given_mutex;
std::map<const DeviceMesh*, Given>& given_to() {
  static auto* given = new std::map<const DeviceMesh*, Given>;  // never destroyed, like the registry
  return *given;
}

void keep_given(const DeviceMesh& mesh) {
  const auto* given = GivenGroups::current();
  if (!given || (given->groups().empty() && !given->are_absent())) return;
  const std::lock_guard lock(given_mutex);
  given_to()[&mesh] = {given->groups(), given->are_absent()};
}

/// Frees `mesh` and the groups that were given to it. Destructors of groups wait for threads, which may need the interpreter's lock, so it
/// is released. Without given groups the lock is kept: the caller may hold another lock that the interpreter lock's next holder waits for.
void end_mesh(DeviceMesh* mesh) {
  std::optional<Given> last;
  {
    const std::lock_guard lock(given_mutex);
    if (const auto found = given_to().find(mesh); found != given_to().end()) {
      last = std::move(found->second);
      given_to().erase(found);
    }
  }
  std::optional<GilRelease> no_gil;
  if (last) no_gil.emplace();
  delete mesh;
  last.reset();
}

/// Nothing if `mesh` uses the World's groups, or if this thread makes meshes over given groups anyway.
std::optional<Given> given_of(const DeviceMesh& mesh) {
  if (GivenGroups::current()) return std::nullopt;
  const std::lock_guard lock(given_mutex);
  const auto found = given_to().find(&mesh);
  return found == given_to().end() ? std::nullopt : std::optional(found->second);
}

std::mutex registry_mutex;
std::map<Key, std::weak_ptr<const DeviceMesh>>& registry() {
  static auto* meshes = new std::map<Key, std::weak_ptr<const DeviceMesh>>;  // never destroyed: meshes may outlive main
  return *meshes;
}

void check_names(const RankGrid& grid, const std::vector<std::string>& names) {
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

  Key key{world.get(), device_type, Line(grid.shape.begin(), grid.shape.end()), grid.ranks, names, given_groups()};
  {
    std::lock_guard lock(registry_mutex);
    if (auto found = registry().find(key); found != registry().end())
      if (auto mesh = found->second.lock()) return mesh;
  }
  const std::shared_ptr<DeviceMesh> mesh(new DeviceMesh, [](DeviceMesh* ended) {
    drop_attachment_of(*ended);
    end_mesh(ended);
  });
  mesh->coord_ = grid.coord_of(world->rank());
  mesh->lines_ = make_lines(*world, grid);
  mesh->everyone_ = world->group(grid.ranks);
  mesh->grid_ = std::make_shared<const RankGrid>(std::move(grid));
  mesh->world_ = std::move(world);
  mesh->device_type_ = device_type;
  mesh->names_ = std::move(names);
  connect_world(*mesh->world_, *mesh);
  keep_given(*mesh);

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
  auto found = std::find(names_.begin(), names_.end(), name);
  TORCH_CHECK_VALUE(found != names_.end(),
                    fmt::format("[device_mesh] no mesh dim is called \"{}\": the mesh is {}.", name, to_string(*this)));
  return found - names_.begin();
}

MeshPtr DeviceMesh::submesh(const std::vector<std::string>& names) const {
  std::vector<int64_t> kept;
  for (const std::string& name : names) {
    kept.push_back(dim_of(name));
    TORCH_CHECK_VALUE(std::ranges::count(kept, kept.back()) == 1,
                      fmt::format("[device_mesh] dim \"{}\" is named twice in a submesh of {}. Name each dim once.",
                                  name, to_string(*this)));
  }

  auto all = slices(*grid_, kept);
  const auto own =
      std::ranges::find_if(all, [&](const RankGrid& slice) { return std::ranges::count(slice.ranks, rank()) > 0; });
  RankGrid mine = own == all.end() ? all.front() : *own;

  std::optional<GivenGroups> over;
  if (auto given = given_of(*with_memory())) {
    if (given->are_absent) {
      over.emplace();
    } else {
      std::erase_if(given->groups, [&](const auto& entry) { return !is_along(mine, entry.first); });
      over.emplace(std::move(given->groups));
    }
  }
  for (const RankGrid& slice : all) {
    make_lines(*world_, slice);
    world_->group(slice.ranks);
  }
  return create(world_, with_memory()->device_type(), std::move(mine), names)->on(device_type_);
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
