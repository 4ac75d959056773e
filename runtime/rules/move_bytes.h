// runtime/rules/move_bytes.h: estimates of the bytes that a move of an operand costs.
#pragma once

#include "runtime/tensor/spec.h"

namespace shardwise {

/// The approximate number of bytes that a rank receives to change a tensor's placement on `mesh_dim` to `to`. Pre: the placement differs
/// from `to`.
int64_t bytes_to_move(const Spec& spec, int64_t mesh_dim, const Placement& to);

/// The same to make tensor dim `dim` whole, over all mesh dims that shard it.
int64_t bytes_to_gather(const Spec& spec, int64_t dim);

/// The number of shards along tensor dim `dim`.
int64_t n_shards_along(const Spec& spec, int64_t dim);

/// The placements of `spec` with Replicate in place of each one that splits one of `dims`, and of pieces whose boxes do. `dims` are not
/// negative.
std::vector<Placement> whole_along(const Spec& spec, c10::IntArrayRef dims);

}  // namespace shardwise
