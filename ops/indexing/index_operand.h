// ops/indexing/index_operand.h: index tensors as operands: distributed, without Partial, range-checked on all ranks.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace shardwise {

/// `index` as an operand on `mesh`. A plain tensor counts as a replica; a Partial is reduced.
/// Throws: c10::ValueError for an index on another mesh, and for a plain one that plain_operand.h objects to.
at::Tensor index_operand(const char* op, const at::Tensor& index, const MeshPtr& mesh);

/// A tensor without dims as a vector of one element.
inline at::Tensor at_least_1d(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor; }

/// The lowest and the highest index on all ranks, apart from those equal to `ignored`. Plain indices are equal on all ranks. Nullopt without indices,
/// for traced and meta ones, and on ranks outside the mesh. Cost: a pass over this rank's indices, for which the host waits; an all-reduce of two
/// numbers for sharded ones.
std::optional<std::pair<int64_t, int64_t>> range_of(const at::Tensor& index,
                                                    std::optional<int64_t> ignored = std::nullopt);

/// Throws: c10::IndexError naming the worst index if one is not in [lowest, size), on all ranks alike. `lowest`: -size if the operator accepts
/// negative indices, else 0. On a mesh of one rank torch's kernel throws instead.
void check_indices(const char* op, const at::Tensor& index, int64_t dim, int64_t lowest, int64_t size);

/// Throws: c10::Error, as torch's gather and scatter do, if an index is not in [0, size).
void check_positions(const char* op, const at::Tensor& index, int64_t dim, int64_t size);

}  // namespace shardwise
