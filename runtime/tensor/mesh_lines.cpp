#include "runtime/tensor/mesh_lines.h"

#include "runtime/comm/given_groups.h"

#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace shardwise {

MeshPtr line_of(const MeshPtr& mesh, int64_t mesh_dim) {
  if (mesh->ndim() == 1) return mesh;
  Dims coord = mesh->coord().value_or(Dims(mesh->ndim()));
  RankGrid line{{mesh->size(mesh_dim)}, {}};
  for (coord[mesh_dim] = 0; coord[mesh_dim] < mesh->size(mesh_dim); ++coord[mesh_dim])
    line.ranks.push_back(mesh->grid().rank_at(coord));
  std::optional<GivenGroups> own;  // reuses the mesh's group, which the World may not know (it does for threads)
  if (!World::is_thread()) {
    GivenGroups::ByRanks groups;
    if (const GroupPtr& group = mesh->group(mesh_dim)) groups[group->ranks] = std::make_shared<Group>(*group);
    own.emplace(std::move(groups));
  }
  return DeviceMesh::create(mesh->world(), mesh->device_type(), std::move(line));
}

MeshPtr world_mesh(c10::DeviceType device_type) {
  const auto world = World::current();
  std::vector<int64_t> ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return DeviceMesh::create(world, device_type, {{world->size()}, std::move(ranks)});
}

}  // namespace shardwise
