// runtime/dispatch/operand_move.h: moves an operand to the layout that its operator needs.
//
// A Partial is reduced again by each operator that needs its value. A program with several such operators should reduce it once: x =
// x.redistribute([Replicate()]).
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// This rank's pieces of `operand` in the layout `to`, for reading only. A number may be on another mesh.
/// Collective over the meshes. Throws: as move() and move_number().
Shards move_operand(const DTensorImpl& operand, const SpecPtr& to);

/// The part of `tensor` that matches `box` of the result. Dims are aligned to the right; broadcast dims stay whole.
at::Tensor narrowed_to(at::Tensor tensor, const Box& box);

}  // namespace shardwise
