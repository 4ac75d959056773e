// runtime/comm/comm_cause.h: whether the program asked for the messages that this thread sends.
#pragma once

namespace shardwise {

/// False if an operator opened the outermost CommScope of this thread, that is, an operator moves its operands on its own. Messages that
/// the communication policy permits still count as not asked for, unlike in CommScope::current_cause().
bool program_asks();

}  // namespace shardwise
