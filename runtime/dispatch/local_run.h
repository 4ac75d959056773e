// runtime/dispatch/local_run.h: runs a decided call on this rank's pieces and wraps what comes out.
#pragma once

#include "runtime/dispatch/bound_call.h"

namespace shardwise {

/// Carries out `decision` for `call`: moves inputs, calls the kernel once per piece, leaves wrapped results on the stack.
void run_decided(BoundCall& call, const Decision& decision);

}  // namespace shardwise
