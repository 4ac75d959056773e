// runtime/api/equal_values.h: whether ranks hold the same plain value.
#pragma once

#include "runtime/comm/digest.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

namespace shardwise {

/// False for a tensor whose values are not in this process's memory: a meta, fake, wrapped or sparse one.
bool has_values(const at::Tensor& plain);

/// Adds the dtype and sizes.
void add_form(Digest& digest, const at::Tensor& plain);
/// Adds the values, if it has_values(). Cost: a copy to the CPU, and one pass.
void add_values(Digest& digest, const at::Tensor& plain);

/// Whether `plain` has the same dtype, sizes and values on all ranks of the mesh. True outside the mesh. If this process does not have the
/// values, only dtype and sizes count. Collective over the mesh: gathers one number per rank, which CommTrace leaves out.
bool is_equal_on_all(const at::Tensor& plain, const MeshPtr& mesh);

}  // namespace shardwise
