// runtime/dispatch/operand_move.h: an operand as its operator needs it.
//
// What an operator reduces a Partial to is kept on the Partial. Operators that meet it later read that instead, as long as the Partial is
// not written to, so that they neither reduce it again nor pass on what would be reduced later. Tensors made in inference mode count no
// writes: theirs is not kept.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// The replica that `operand` was reduced to, or an undefined tensor. To be read only. Cost: a read where it never was.
at::Tensor known_replica(const DTensorImpl& operand);

/// This rank's pieces of `operand` laid out as `to`, to be read only; kept where `operand` is Partial. Collective over the mesh, unless it
/// is known. Throws: as move().
Shards move_operand(const DTensorImpl& operand, const SpecPtr& to);

}  // namespace shardwise
