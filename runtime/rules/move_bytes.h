// runtime/rules/move_bytes.h: estimates of the bytes that a move of an operand costs.
#pragma once

#include "runtime/tensor/spec.h"

namespace shardwise {

/// The approximate number of bytes that a rank receives to change a tensor's placement on `mesh_dim` to `to`. Pre: the placement differs
/// from `to`.
int64_t bytes_to_move(const Spec& spec, int64_t mesh_dim, const Placement& to);

/// The same to make tensor dim `dim` whole, over all mesh dims that shard it.
int64_t bytes_to_gather(const Spec& spec, int64_t dim);

/// The layout in which `grad`, Partial on some mesh dims, serves two calls that take it as `one` and `other`, so that it is reduced once: the layout
/// of the call that needs more. Where both calls pass a Partial on, the gradient of `weight` is reduced, which is of the same terms: if that moves
/// more bytes, `grad` is reduced in its place. `grad` if no layout serves both calls.
SpecPtr layout_reduced_once(const SpecPtr& grad, const SpecPtr& one, const SpecPtr& other, const Spec& weight);

}  // namespace shardwise
