// runtime/dispatch/forward_mode.h: forward-mode derivatives of operators for which torch has no formula.
#pragma once

namespace shardwise {

/// Those that torch composes of others (linear, matmul) are composed where an operand has a tangent: torch does so for devices whose
/// kernels do not come in the composition's way. Nothing is added to calls without a tangent.
void register_forward_mode();

}  // namespace shardwise
