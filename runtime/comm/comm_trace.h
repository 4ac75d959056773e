// runtime/comm/comm_trace.h: records of sent messages, by collective and by operator.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shardwise {

/// One collective as one rank saw it. Bytes exclude messages of a rank to itself. For all_reduce both numbers are a ring's 2 (n-1)/n of the
/// tensor, the bound that backends reach.
struct CommEvent {
  std::string collective;  // "all_to_all", "all_reduce", "broadcast", "all_gather"
  std::string op;          // the operator that sends, "aten::mm", or "redistribute"
  int64_t n_ranks = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

/// Records the collectives of this thread during its lifetime. Traces nest: an outer one also records the events of inner ones.
class CommTrace {
 public:
  CommTrace();
  ~CommTrace();
  CommTrace(const CommTrace&) = delete;
  CommTrace& operator=(const CommTrace&) = delete;

  const std::vector<CommEvent>& events() const { return events_; }
  int64_t total_count() const { return static_cast<int64_t>(events_.size()); }
  int64_t bytes_received() const;
  int64_t bytes_sent() const;
  std::map<std::string, int64_t> counts() const;  // by collective

  /// Adds an event to every trace of this thread. Cost without a trace: one thread-local read.
  static void record(const char* collective, int64_t n_ranks, int64_t bytes_sent, int64_t bytes_received);

 private:
  std::vector<CommEvent> events_;
  CommTrace* outer_;
};

/// Names the operator that collectives of this thread run for, during its lifetime. Scopes nest.
///
///   const auto layouts = [&] { return fmt::format("{} -> {}", to_string(*from), to_string(*to)); };
///   const CommScope scope("redistribute", CommScope::Cause::kProgram, layouts);
///
/// Cost: a few pointers. `layouts` is called only under the order check (order_check.h), before each communication.
class CommScope {
 public:
  /// The reason for communication: an operator moves its operands on its own ("aten::mm"), or the program asked for it ("redistribute").
  enum class Cause : uint8_t { kOperator, kProgram };

  explicit CommScope(const char* op, Cause cause = Cause::kOperator) : CommScope(op, cause, nullptr, nullptr) {}
  /// `layouts()` returns a text that is the same on every rank. `layouts` must outlive the scope.
  template <class Layouts>
  CommScope(const char* op, Cause cause, const Layouts& layouts)
      : CommScope(op, cause, &layouts,
                  [](const void* self) -> std::string { return (*static_cast<const Layouts*>(self))(); }) {}
  template <class Layouts>
  CommScope(const char* op, Cause cause, const Layouts&& layouts) = delete;  // a temporary would dangle
  ~CommScope();
  CommScope(const CommScope&) = delete;
  CommScope& operator=(const CommScope&) = delete;

  /// The innermost scope's operator on this thread, or "".
  static const char* current_op();
  /// The innermost scope's cause. kProgram without a scope, and after permit().
  static Cause current_cause();
  /// From now on the innermost scope's messages count as asked for by the program.
  static void permit();
  /// The text of the innermost scope's `layouts()`, or "" if it has none.
  static std::string current_layouts();

 private:
  using Describe = std::string (*)(const void* layouts);
  CommScope(const char* op, Cause cause, const void* layouts, Describe describe);

  const char* op_;
  mutable Cause cause_;
  const void* layouts_;
  Describe describe_;
  const CommScope* outer_;
};

}  // namespace shardwise
