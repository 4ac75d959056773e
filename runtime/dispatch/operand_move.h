// runtime/dispatch/operand_move.h: an operand as its operator needs it.
//
// What an operator reduces a Partial to is kept on the Partial. Operators that meet it later read that instead, as long as the Partial is
// not written to, so that they neither reduce it again nor pass on what would be reduced later. It is not kept
//   - of tensors made in inference mode, which count no writes;
//   - of memory that the program gave (runtime/tensor/given_memory.h), which a rank may write to without a word;
//   - of what the operator writes to.
#pragma once

#include "runtime/dispatch/bound_call.h"

namespace shardwise {

/// The replica that `operand` was reduced to, or an undefined tensor. To be read only. Cost: a read where it never was.
at::Tensor known_replica(const DTensorImpl& operand);

/// This rank's pieces of `operand`, an operand of `call`, laid out as `to`, to be read only; kept where `operand` is Partial. A number may
/// come from another mesh. Collective over the meshes, unless it is known. Throws: as move(), move_number() and DTensorImpl::reduced().
Shards move_operand(const BoundCall& call, const DTensorImpl& operand, const SpecPtr& to);

/// The part of `tensor` in `box` of the result; dims are aligned to the right, broadcast ones stay whole.
at::Tensor narrowed_to(at::Tensor tensor, const Box& box);

}  // namespace shardwise
