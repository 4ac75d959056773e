#include "runtime/tensor/reordered_mesh.h"

#include "runtime/comm/given_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

namespace shardwise {
namespace {

/// The mesh that the program passed, with memory. Dim k of the reordered mesh is its dim order[k].
struct Origin {
  MeshPtr mesh;
  std::vector<int64_t> order;
};

struct Known {
  std::weak_ptr<const DeviceMesh> reordered;
  Origin origin;
};

std::mutex known_mutex;
std::map<const DeviceMesh*, Known>& known() {
  static auto* meshes = new std::map<const DeviceMesh*, Known>;  // never destroyed: meshes may outlive main
  return *meshes;
}

/// Drops the origins of meshes that have ended. Pre: known_mutex is held.
void forget_ended() {
  std::erase_if(known(), [](const auto& entry) { return entry.second.reordered.expired(); });
}

/// The origin of `mesh`. A mesh that is not reordered is its own origin.
Origin origin_of(const MeshPtr& mesh) {
  const MeshPtr with_memory = mesh->with_memory();
  {
    const std::lock_guard lock(known_mutex);
    forget_ended();
    const auto found = known().find(with_memory.get());
    if (found != known().end()) return found->second.origin;
  }
  std::vector<int64_t> order(mesh->ndim());
  std::iota(order.begin(), order.end(), 0);
  return {with_memory, std::move(order)};
}

/// "1st: tp", "2nd: dp": names that no program uses, so that the mesh differs from a program's own mesh with these ranks.
std::vector<std::string> names_in(const DeviceMesh& mesh, c10::IntArrayRef order) {
  std::vector<std::string> names;
  for (size_t k = 0; k < order.size(); ++k) {
    const char* ending = k == 0 ? "st" : k == 1 ? "nd" : k == 2 ? "rd" : "th";
    const std::string name = mesh.names().empty() ? fmt::format("dim {}", order[k]) : mesh.names()[order[k]];
    names.push_back(fmt::format("{}{}: {}", k + 1, ending, name));
  }
  return names;
}

/// Uses the groups of `mesh`, so no group is made and not all ranks need to call this. For threads, the World's own groups are used.
MeshPtr created(const DeviceMesh& mesh, c10::IntArrayRef order) {
  std::optional<GivenGroups> given;
  if (!World::is_thread()) {
    GivenGroups::ByRanks groups;
    const auto give = [&](const GroupPtr& group) {
      if (group) groups[group->ranks] = std::make_shared<Group>(*group);
    };
    give(mesh.group());
    for (int64_t m = 0; m < mesh.ndim(); ++m) give(mesh.group(m));
    given.emplace(std::move(groups));
  }
  return DeviceMesh::create(mesh.world(), mesh.device_type(), reordered(mesh.grid(), order), names_in(mesh, order));
}

/// Pre: `order` differs from the order of `given`.
MeshPtr mesh_in(const MeshPtr& given, std::vector<int64_t> order) {
  const MeshPtr mesh = given->with_memory();
  const MeshPtr result = created(*mesh, order);
  const std::lock_guard lock(known_mutex);
  forget_ended();
  known().insert_or_assign(result.get(), Known{result, {mesh, std::move(order)}});
  return result->on(given->device_type());
}

}  // namespace

PlacedOn placed_on_mesh(const MeshPtr& mesh, UserPlacements written, int64_t n_dims) {
  if (!written.is_reordered()) return {mesh, std::move(written.placements)};
  written = resolved(std::move(written), n_dims);
  std::vector<int64_t> order = order_of_splits(written, mesh->grid().shape);
  if (std::ranges::is_sorted(order)) return {mesh, std::move(written.placements)};
  std::vector<Placement> placements = reordered(c10::ArrayRef<Placement>(written.placements), order);
  return {mesh_in(mesh, std::move(order)), std::move(placements)};
}

std::optional<std::vector<Placement>> maybe_placements_on(const MeshPtr& mesh, const UserPlacements& written,
                                                          int64_t n_dims) {
  const Origin origin = origin_of(mesh);
  if (written.placements.size() != origin.order.size()) return written.placements;  // Layout reports what is wrong
  const UserPlacements wanted = resolved(written, n_dims);
  auto placements = reordered(c10::ArrayRef<Placement>(wanted.placements), origin.order);
  if (written_in_order(placements, origin.order, origin.mesh->grid().shape) != wanted) return std::nullopt;
  return placements;
}

UserLayout user_layout_of(const Spec& spec) {
  const Origin origin = origin_of(spec.mesh());
  if (auto written = written_in_order(spec.placements(), origin.order, origin.mesh->grid().shape))
    return {origin.mesh->on(spec.mesh()->device_type()), *std::move(written)};
  return {spec.mesh(), {spec.placements().vec(), std::vector<int64_t>(spec.placements().size(), 1)}};
}

SpecPtr on_sibling(const Spec& spec, const MeshPtr& mesh) {
  const Origin from = origin_of(spec.mesh()), to = origin_of(mesh);
  if (from.mesh != to.mesh || spec.mesh()->is_meta() != mesh->is_meta()) return nullptr;
  std::vector<Placement> placements(spec.placements().size());
  for (size_t k = 0; k < placements.size(); ++k) {
    const auto place = std::ranges::find(to.order, from.order[k]) - to.order.begin();
    if (const Placement& each = spec.placements()[k]; each.is_chunk() || !each.divides()) placements[place] = each;
  }
  return Spec::intern(mesh, spec.sizes(), std::move(placements), spec.strides(), spec.dtype());
}

}  // namespace shardwise
