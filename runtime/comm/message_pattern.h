// runtime/comm/message_pattern.h: the name of the collective that an exchange of messages amounts to, for readers of events.
#pragma once

namespace shardwise {

/// During its lifetime, names the collective that this thread's exchanges amount to, "all_gather". Without a MessagePattern it is
/// "all_to_all".
///
///   const auto name = [&] { return name_of(steps); };
///   const MessagePattern pattern(name);
///
/// Cost: a few pointers. `name()` is called only if an EventReader is open.
class MessagePattern {
 public:
  /// `name()` returns a text that lives as long as the program. `name` must outlive the scope.
  template <class Name>
  explicit MessagePattern(const Name& name)
      : MessagePattern(&name, [](const void* self) -> const char* { return (*static_cast<const Name*>(self))(); }) {}
  template <class Name>
  explicit MessagePattern(const Name&& name) = delete;  // a temporary would dangle
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
