// runtime/api/equal_values.h: whether ranks hold the same plain value.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Whether `plain` has one element on all ranks of the mesh, and the same dtype, sizes and value. True outside the mesh, false for values
/// that this process does not have. Collective over the mesh: gathers one number per rank, which CommTrace leaves out.
bool is_one_value_on_all(const at::Tensor& plain, const MeshPtr& mesh);

}  // namespace shardwise
