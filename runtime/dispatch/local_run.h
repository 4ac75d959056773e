// runtime/dispatch/local_run.h: runs a decided call on this rank's pieces and wraps what comes out.
#pragma once

#include "runtime/dispatch/bound_call.h"

#include <exception>

namespace shardwise {

/// Carries out `decision` for `call`: moves inputs, calls the kernel once per piece, leaves wrapped results on the stack.
/// `refusal`: is thrown where the kernel would be called, for other ranks take part in the moves first.
void run_decided(BoundCall& call, const Decision& decision, const std::exception_ptr& refusal = nullptr);

}  // namespace shardwise
