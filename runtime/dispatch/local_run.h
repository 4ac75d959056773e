// runtime/dispatch/local_run.h: runs a decided call on this rank's pieces and wraps the results.
#pragma once

#include "runtime/dispatch/bound_call.h"

#include <exception>

namespace shardwise {

/// The pieces of an operand of `call` that moves. Operands that the kernel writes, or the result may alias, get memory of their own; move_operand()
/// may return shared memory.
Shards moved(const BoundCall& call, const BoundOperand& operand, const SpecPtr& to);

/// Replaces the pieces `read` of an operand by copies if a kernel would refuse one of them next to the piece that it writes, or if an
/// earlier one of the pieces `written` overlaps it. Pre: as many of both.
void copy_overwritten(c10::ArrayRef<at::Tensor> written, Shards& read);

/// Executes `decision` for `call`: moves inputs, calls the kernel once per piece, leaves wrapped results on the stack.
/// `refusal`: thrown in place of the kernel call. It comes after the moves, because other ranks take part in them.
void run_decided(BoundCall& call, const Decision& decision, const std::exception_ptr& refusal = nullptr);

}  // namespace shardwise
