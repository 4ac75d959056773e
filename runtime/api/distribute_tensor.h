// runtime/api/distribute_tensor.h: from a whole tensor, on one rank or on all, to a distributed one.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>

namespace shardwise {

/// Shards `tensor`, which every rank holds; or the copy of the member at place `src_data_rank` of the mesh, which sends each rank its
/// part. The result is a leaf with memory of its own, and requires a gradient if that copy does.
///
/// Of a tensor on meta, on meta: no values are sent, and none where `src_data_rank` is nothing. Where the member whose copy counts has
/// values, other ranks' tensors may be on meta: their shape alone is used. Ranks outside the mesh give what that member gives.
/// Throws: as Layout, before any message; c10::ValueError for a tensor that is not dense, or not of one shape and dtype on all ranks, and
/// where the copy that counts is on meta and another is not; c10::Error for one that was computed from others which require a gradient.
at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                             std::optional<int64_t> src_data_rank = 0);

}  // namespace shardwise
