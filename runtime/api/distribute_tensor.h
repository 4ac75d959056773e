// runtime/api/distribute_tensor.h: makes a distributed tensor from a whole one that one rank or all ranks have.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

/// Shards `tensor`. With `src_data_rank`, the member at that place in the mesh is the root and sends each rank its part of the root's
/// tensor; without it, each rank cuts its part from its own tensor. The result is a leaf with memory of its own, and requires a gradient if
/// the root's tensor does.
///
/// If the root's tensor is on meta, so is the result. No values are sent in that case, nor without `src_data_rank`. If the root has values,
/// the other ranks' tensors may be on meta: only their shape is used. Ranks outside the mesh pass the same `tensor` as the root.
/// Throws: as Layout, before any message; c10::ValueError for a tensor that is not dense, if the ranks' shapes or dtypes differ, and if the
/// root's tensor is on meta and another is not; c10::Error for a tensor computed from others that require a gradient.
at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                             std::optional<int64_t> src_data_rank = 0);

/// distribute_tensor() of each tensor to its own placements. For plain tensors the ranks compare all their facts in one exchange, and the root
/// sends the values in few messages; values of few bytes go along with the facts. Pre: as many placements as tensors.
std::vector<at::Tensor> distribute_tensors(at::TensorList tensors, const MeshPtr& mesh,
                                           std::vector<Placements> placements,
                                           std::optional<int64_t> src_data_rank = 0);

}  // namespace shardwise
