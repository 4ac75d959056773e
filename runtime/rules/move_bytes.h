// runtime/rules/move_bytes.h: what it costs a rank to make dims of an operand whole.
#pragma once

#include "runtime/tensor/spec.h"

namespace shardwise {

/// About how many bytes a rank receives to bring a tensor from its placement on `mesh_dim` to `to`. Pre: it is not there already.
int64_t bytes_to_move(const Spec& spec, int64_t mesh_dim, const Placement& to);

/// The same to make tensor dim `dim` whole, whatever mesh dims shard it.
int64_t bytes_to_gather(const Spec& spec, int64_t dim);

/// The number of shards along tensor dim `dim`.
int64_t n_shards_along(const Spec& spec, int64_t dim);

/// The placements of `spec` with Replicate in the place of those that split one of `dims`, and of pieces by their boxes. `dims` are not negative.
std::vector<Placement> whole_along(const Spec& spec, c10::IntArrayRef dims);

}  // namespace shardwise
