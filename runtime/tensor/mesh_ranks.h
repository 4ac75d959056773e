// runtime/tensor/mesh_ranks.h: checks that a world has enough ranks for a mesh.
#pragma once

#include "runtime/comm/world.h"

#include <c10/util/ArrayRef.h>

namespace shardwise {

/// Throws: c10::ValueError for a shape with more ranks than the world. If the program is a single process, the error says how to start
/// enough. Extents are at least 1; their product may overflow.
void check_has_ranks(const World& world, c10::IntArrayRef mesh_shape);

}  // namespace shardwise
