// runtime/api/equal_values.h: whether ranks hold the same plain value.
#pragma once

#include "runtime/comm/digest.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

namespace shardwise {

/// False for a tensor whose values this process does not have in memory: a meta, fake, wrapped or sparse one.
bool has_values(const at::Tensor& plain);

/// Adds dtype and sizes.
void add_form(Digest& digest, const at::Tensor& plain);
/// Adds the values, if it has_values(). Cost: a copy to the CPU, and one pass.
void add_values(Digest& digest, const at::Tensor& plain);

/// Whether `plain` has the same dtype, sizes and values on all ranks of the mesh. True outside the mesh; without values in this process dtype
/// and sizes alone count. Collective over the mesh: gathers one number per rank, which CommTrace leaves out.
bool is_equal_on_all(const at::Tensor& plain, const MeshPtr& mesh);

}  // namespace shardwise
