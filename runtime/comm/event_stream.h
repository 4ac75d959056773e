// runtime/comm/event_stream.h: where the events of events.h are emitted: communications by Communication, operators by an OpSpan.
#pragma once

#include "runtime/comm/events.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

/// The events of a thread, from the time when it has a reader until it has none. Times are readings of c10::getApproximateTime(); readers convert them.
struct EventStream : std::enable_shared_from_this<EventStream> {
  std::vector<std::shared_ptr<CommEvent>> communications;  // by their begins
  std::vector<OpEvent> operators;                          // by their ends
  std::vector<const EventReader*> readers;                 // open ones

  /// Adds a communication of this thread.
  void add(std::shared_ptr<CommEvent> event);

  /// Protects `communications`, which other threads may read, and what changes in a CommEvent after its begin: it may end on another thread.
  static std::mutex& mutex();
};

/// A call of an operator, from its construction to end(). It becomes an event if a reader wants operators and torch.compile is not tracing.
class OpSpan {
 public:
  OpSpan() {
    if (operators_are_read()) [[unlikely]]
      open();
  }
  /// Whether the call becomes an event.
  bool is_open() const { return stream_ != nullptr; }
  void end(std::shared_ptr<const OpDescription> description) { add({std::move(description)}); }
  /// Ends the call of a kernel that replaces a rule. If the kernel only called the operator of its own name, such as a kernel for autograd
  /// the one for the values, both count as one call.
  void end_kernel(const std::string& op);

 private:
  void open();
  void add(OpEvent event);

  std::shared_ptr<EventStream> stream_;  // null if not open
  size_t first_communication_ = 0;
  size_t first_operator_ = 0;
  int64_t begin_ = 0;
};

/// The call of kernel `op`, which must outlive this object.
class KernelSpan {
 public:
  explicit KernelSpan(const std::string& op) : op_(op) {}
  ~KernelSpan() {
    if (span_.is_open()) [[unlikely]]
      span_.end_kernel(op_);
  }
  C10_DISABLE_COPY_AND_ASSIGN(KernelSpan);

 private:
  const std::string& op_;
  OpSpan span_;
};

}  // namespace shardwise
