#include "shardwise/device_mesh.h"

#include "runtime/comm/env_world.h"
#include "text/check.h"

#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <ostream>

namespace shardwise {

Mesh::Mesh(MeshPtr mesh) : mesh_(std::move(mesh)) {
  TORCH_CHECK_VALUE(mesh_, "[device_mesh] the mesh is a null pointer. Make one with init_device_mesh().");
}

int64_t Mesh::get_local_rank(const std::string& mesh_dim_name) const {
  SW_CHECK_VALUE(!mesh_dim_name.empty() || ndim() == 1, "[device_mesh] the mesh {} has {} dims. {}.", to_string(*mesh_),
                 ndim(),
                 mesh_dim_names().empty() ? "Make it with a name for each, or ask get_coordinate()"
                                          : "Pass the name of one of them");
  return mesh_->coord_along(mesh_dim_name.empty() ? 0 : mesh_->dim_of(mesh_dim_name));
}

std::ostream& operator<<(std::ostream& stream, const Mesh& mesh) { return stream << to_string(*mesh); }

std::shared_ptr<World> init_process_group(std::chrono::milliseconds timeout) {
  return std::getenv("WORLD_SIZE") ? init_from_env(timeout) : single_world();
}

Mesh init_device_mesh(const std::string& device_type, c10::IntArrayRef mesh_shape,
                      std::vector<std::string> mesh_dim_names) {
  const std::string kind = device_type.substr(0, device_type.find(':'));
  SW_CHECK_VALUE(kind == "cpu" || kind == "cuda" || kind == "meta",
                 "[device_mesh] device_type \"{}\" is not supported. Use \"cpu\", \"cuda\" or \"meta\".", device_type);
  const c10::Device device(device_type);
  SW_CHECK_VALUE(!device.has_index(),
                 "[device_mesh] device_type \"{}\" has an index. A mesh spans devices: use \"{}\".", device_type,
                 c10::DeviceTypeName(device.type(), true));
  SW_CHECK_VALUE(std::ranges::all_of(mesh_shape, [](int64_t extent) { return extent > 0; }),
                 "[device_mesh] the shape [{}] has an extent below 1. Give each dim at least one rank.",
                 fmt::join(mesh_shape, ", "));
  auto world = World::maybe_current();
  if (!world) world = init_process_group();
  check_has_ranks(*world, mesh_shape);
  std::vector<int64_t> ranks(c10::multiply_integers(mesh_shape));
  std::iota(ranks.begin(), ranks.end(), 0);
  return DeviceMesh::create(std::move(world), device.type(), {Dims(mesh_shape), std::move(ranks)},
                            std::move(mesh_dim_names));
}

}  // namespace shardwise
