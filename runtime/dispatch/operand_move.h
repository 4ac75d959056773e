// runtime/dispatch/operand_move.h: an operand as its operator needs it.
//
// A Partial is reduced by each operator that needs its value. A program in which several do reduces it once: x = x.redistribute([Replicate()]).
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// This rank's pieces of `operand` laid out as `to`, to be read only. A number may come from another mesh.
/// Collective over the meshes. Throws: as move() and move_number().
Shards move_operand(const DTensorImpl& operand, const SpecPtr& to);

/// The part of `tensor` in `box` of the result; dims are aligned to the right, broadcast ones stay whole.
at::Tensor narrowed_to(at::Tensor tensor, const Box& box);

}  // namespace shardwise
