// runtime/dispatch/local_run.h: runs a decided call on this rank's pieces and wraps the results.
#pragma once

#include "runtime/dispatch/bound_call.h"

#include <exception>

namespace shardwise {

/// Executes `decision` for `call`: moves inputs, calls the kernel once per piece, leaves wrapped results on the stack.
/// `refusal`: thrown in place of the kernel call. It comes after the moves, because other ranks take part in them.
void run_decided(BoundCall& call, const Decision& decision, const std::exception_ptr& refusal = nullptr);

}  // namespace shardwise
