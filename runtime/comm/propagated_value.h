// runtime/comm/propagated_value.h: thread-local values that propagate to the threads on which autograd runs the backward.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace shardwise {

/// A value of this thread while a c10::DebugInfoGuard for it lives. at::ThreadLocalState propagates it, as autograd does from the thread
/// that calls backward(); a thread_local would be lost. Each Value is defined in a single source file, so that it has a single kName; its
/// kSlot is unique.
template <class Value, uint8_t kSlot>
struct PropagatedValue final : c10::DebugInfoBase {
  explicit PropagatedValue(Value value) : value(std::move(value)) {}
  const Value value;

  static c10::DebugInfoKind kind() { return kind_of<c10::DebugInfoKind>(); }
  /// The innermost value, or `otherwise` if there is none. Cost: a thread-local read and a short list.
  static const Value& current(const Value& otherwise) {
    const auto* info = static_cast<const PropagatedValue*>(c10::ThreadLocalDebugInfo::get(kind()));
    return info ? info->value : otherwise;
  }

 private:
  template <class Kind>
  static Kind kind_of() {
    static constexpr std::string_view kName = "shardwise";
    if constexpr (std::is_enum_v<Kind>)  // torch before 2.12 has an enum, whose own kinds count from 0
      return static_cast<Kind>(128 + kSlot);
    else
      return Kind(&kName);
  }
};

}  // namespace shardwise
