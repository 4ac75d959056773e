// runtime/dispatch/forward_mode.h: forward-mode derivatives of operators for which torch has no formula.
#pragma once

namespace shardwise {

/// Lets torch decompose composite operators (linear, matmul) when an operand has a tangent. torch does so for devices whose kernels do not
/// take precedence over the composition. Calls without a tangent cost nothing more.
void register_forward_mode();

}  // namespace shardwise
