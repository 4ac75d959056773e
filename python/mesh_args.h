// python/mesh_args.h: meshes and mesh dims as arguments of Python functions: passed, named or left out.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <optional>
#include <string>
#include <variant>

namespace shardwise {

using DimOrName = std::variant<int64_t, std::string>;

/// `dim` as a number in [0, ndim). nullopt stands for the only dim. Throws: c10::IndexError, c10::ValueError.
int64_t dim_of(const DeviceMesh& mesh, const std::optional<DimOrName>& dim);

/// `mesh`, or the mesh of the innermost `with mesh:`, or a 1-D mesh of all ranks of the world.
MeshPtr mesh_or_world(const std::optional<MeshPtr>& mesh, const std::string& device_type);

}  // namespace shardwise
