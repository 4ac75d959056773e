#include "runtime/tensor/mesh_families.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

namespace shardwise {
namespace {

using Member = std::tuple<Dims, std::vector<int64_t>, DimNames>;  // shape, ranks, names

Member key_of(const RankGrid& grid, const DimNames& names) { return {grid.shape, grid.ranks, names}; }
Member key_of(const DeviceMesh& mesh) { return key_of(mesh.grid(), mesh.names()); }

std::set<Member> members_of(const MeshFamily& family) {
  if (!family.dims) return {key_of(family.root, family.root_names)};
  std::set<Member> members;
  for (const RankGrid& slice : slices(family.root, positions(family.root_names, *family.dims)))
    members.insert(key_of(slice, family.names));
  return members;
}

struct Noted {
  MeshFamily family;
  std::set<Member> members;
};

std::mutex noted_mutex;
/// The families in the order in which they were made. Pre: noted_mutex is held.
std::vector<Noted>& noted_in(const std::shared_ptr<World>& world) {
  using ByWorld = std::map<std::weak_ptr<World>, std::vector<Noted>, std::owner_less<>>;
  static auto* const by_world = new ByWorld;  // never destroyed: meshes may outlive main
  std::erase_if(*by_world, [](const auto& entry) { return entry.first.expired(); });
  return (*by_world)[world];
}

/// The noted families of meshes on the device type of `mesh`.
std::vector<Noted> noted_like(const DeviceMesh& mesh) {
  const std::lock_guard lock(noted_mutex);
  std::vector<Noted> result = noted_in(mesh.world());
  std::erase_if(result,
                [&](const Noted& each) { return each.family.device_type != mesh.with_memory()->device_type(); });
  return result;
}

bool has_all(const DimNames& names, const DimNames& wanted) {
  return std::ranges::all_of(wanted, [&](const auto& name) { return std::ranges::count(names, name) > 0; });
}

/// True if all meshes are slices of `root` along dims of their names.
bool has_slices(const MeshFamily& root, c10::ArrayRef<MeshPtr> meshes) {
  return std::ranges::all_of(meshes, [&](const MeshPtr& mesh) {
    MeshFamily family = root;
    family.names = mesh->names();
    family.dims = each_alone(mesh->names());
    return has_all(root.root_names, mesh->names()) && members_of(family).contains(key_of(*mesh));
  });
}

}  // namespace

void note_family(const DeviceMesh& root, const DimNames& names, const std::optional<std::vector<DimNames>>& dims) {
  if (root.groups() != MeshGroups::kWorlds) return;
  if (!dims) {
    const std::lock_guard lock(root.parts().mutex);
    root.parts().is_root = true;
    if (std::exchange(root.parts().is_by_all, true)) return;
  }
  MeshFamily family{root.with_memory()->device_type(), root.grid(), root.names(), names, dims};
  const std::lock_guard lock(noted_mutex);
  auto& noted = noted_in(root.world());
  if (std::ranges::count(noted, family, &Noted::family) > 0) return;
  auto members = members_of(family);
  noted.push_back({std::move(family), std::move(members)});
}

std::vector<MeshFamily> related_families(const DeviceMesh& mesh) {
  if (mesh.groups() != MeshGroups::kWorlds) return {};
  const std::vector<Noted> noted = noted_like(mesh);
  std::set<Member> known{key_of(mesh)};
  std::vector<bool> is_related(noted.size());
  for (bool grows = true; grows;) {
    grows = false;
    for (size_t i = 0; i < noted.size(); ++i) {
      const auto is_known = [&](const Member& member) { return known.contains(member); };
      if (is_related[i] || std::ranges::none_of(noted[i].members, is_known)) continue;
      known.insert(noted[i].members.begin(), noted[i].members.end());
      is_related[i] = grows = true;
    }
  }
  std::vector<MeshFamily> result;
  for (size_t i = 0; i < noted.size(); ++i)
    if (is_related[i]) result.push_back(noted[i].family);
  return result;
}

MeshPtr common_root(c10::ArrayRef<MeshPtr> meshes) {
  const MeshPtr own = meshes[0]->with_memory()->root();
  const DimNames& names = own->names();
  if (std::ranges::all_of(meshes, [&](const MeshPtr& each) { return each->with_memory()->root() == own; })) {
    // The most frequent case: without a look at other meshes.
    std::set<std::pair<int64_t, std::string>> by_first_dim;
    for (const MeshPtr& mesh : meshes) {
      const auto dims = mesh->dims_of_root();
      for (size_t i = 0; i < dims.size(); ++i) by_first_dim.emplace(own->dim_of(dims[i][0]), mesh->names()[i]);
    }
    DimNames used;
    for (const auto& [dim, name] : by_first_dim) used.push_back(name);
    return meshes.size() == 1 || has_all(names, used) ? own : own->submesh(used);
  }
  if (std::ranges::any_of(meshes, [](const MeshPtr& each) { return each->names().empty(); })) return nullptr;
  const MeshFamily first{own->device_type(), own->grid(), names, {}, {}};
  if (has_slices(first, meshes)) return own;
  for (const auto& [family, members] : noted_like(*meshes[0]))
    if (has_slices(family, meshes))
      return DeviceMesh::create_by_members(own->world(), own->device_type(), family.root, family.root_names);
  return nullptr;
}

}  // namespace shardwise
