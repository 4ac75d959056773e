// runtime/comm/comm_thread.h: all thread-local state of communications in one object, because a library's access to each thread-local costs
// a call.
#pragma once

#include "runtime/comm/comm_scope.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace shardwise {

class FlightRecorder;
struct EventStream;
struct GroupCalls;

struct KnownGroup {
  uint64_t number = 0;  // the number of the Group
  GroupCalls* calls = nullptr;
};

struct CommThread {
  /// False if an operator opened the outermost CommScope, that is, an operator moves its operands on its own. Messages that the communication
  /// policy permits still count as not asked for, unlike in CommScope::current_cause().
  bool program_asks() const { return scope == nullptr || outermost_cause == CommScope::Cause::kProgram; }

  const CommScope* scope = nullptr;  // the innermost, or null

  EventStream* stream = nullptr;  // null unless a reader is open (events.h)
  uint8_t wants = 0;              // of all open readers: a sum of EventReader::Wants

  const char* op = "";                                            // of the innermost scope
  CommScope::Cause outermost_cause = CommScope::Cause::kProgram;  // of the outermost scope, before any permit()

  // Results of the last lookups. Recorders and their groups are never freed.
  FlightRecorder* recorder = nullptr;
  int64_t rank = -1;  // the recorder's
  std::array<KnownGroup, 4> groups{};
  size_t oldest_group = 0;

  const char* reader = nullptr;  // the outermost Reading (no_messages.h), or null
};

/// The state of this thread.
CommThread& comm_thread();

}  // namespace shardwise
