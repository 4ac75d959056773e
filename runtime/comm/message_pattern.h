// runtime/comm/message_pattern.h: what an exchange of messages amounts to, for traces.
#pragma once

namespace shardwise {

/// Names what this thread's exchanges amount to, "all_gather", for the time of its life; without one they are "all_to_all".
///
///   const auto name = [&] { return name_of(steps); };
///   const MessagePattern pattern(name);
///
/// Cost: a few pointers; `name()` runs only where a CommTrace lives.
class MessagePattern {
 public:
  /// `name()` gives a text that lives as long as the program. It lives as long as the scope.
  template <class Name>
  explicit MessagePattern(const Name& name)
      : MessagePattern(&name, [](const void* self) -> const char* { return (*static_cast<const Name*>(self))(); }) {}
  template <class Name>
  explicit MessagePattern(const Name&& name) = delete;  // would be gone when it is asked
  ~MessagePattern();
  MessagePattern(const MessagePattern&) = delete;
  MessagePattern& operator=(const MessagePattern&) = delete;

  static const char* current();

 private:
  using Describe = const char* (*)(const void* name);
  MessagePattern(const void* name, Describe describe);

  const void* name_;
  Describe describe_;
  const MessagePattern* outer_;
};

}  // namespace shardwise
