// runtime/comm/comm_scope.h: the operator that a thread's communications are for.
#pragma once

#include <cstdint>
#include <string>

namespace shardwise {

/// Names the operator that collectives of this thread run for, during its lifetime. Scopes nest.
///
///   const auto layouts = [&] { return fmt::format("{} -> {}", to_string(*from), to_string(*to)); };
///   const CommScope scope("redistribute", CommScope::Cause::kProgram, layouts);
///
/// Cost: a few pointers. `layouts` is called only under the order check (order_check.h) and for readers of details (events.h), before each
/// communication.
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
