// ops/sparse/entry_box.h: indices and columns of a sparse tensor's entries within one shard's box; plain tensors.
#pragma once

#include "placements/box.h"

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Converts indices [sparse dims, n] from the whole tensor to the box, and back.
at::Tensor indices_within(const at::Tensor& indices, const Box& box);
at::Tensor indices_of_whole(const at::Tensor& indices, const Box& box);

/// The box's columns of `values`, which may have more.
at::Tensor columns_of(at::Tensor values, const Box& box, int64_t sparse_dim);

}  // namespace shardwise
