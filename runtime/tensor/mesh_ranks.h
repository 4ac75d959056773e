// runtime/tensor/mesh_ranks.h: whether a world has the ranks that a mesh needs.
#pragma once

#include "runtime/comm/world.h"

#include <c10/util/ArrayRef.h>

namespace shardwise {

/// Throws: c10::ValueError for a shape of more ranks than the world's, with how to start as many where the program is one process. Any extents
/// from 1 on, whatever their product.
void check_has_ranks(const World& world, c10::IntArrayRef mesh_shape);

}  // namespace shardwise
