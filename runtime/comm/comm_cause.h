// runtime/comm/comm_cause.h: whether the program asked for what this thread sends.
#pragma once

namespace shardwise {

/// False where an operator moves operands on its own: one opened the outermost CommScope of this thread. What the communication policy
/// has let pass stays unasked for, unlike with CommScope::current_cause().
bool program_asks();

}  // namespace shardwise
