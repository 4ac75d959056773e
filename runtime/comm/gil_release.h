// runtime/comm/gil_release.h: releases the Python interpreter's lock while a thread waits for other ranks.
#pragma once

namespace shardwise {

/// Releases the interpreter's lock during its lifetime, while this thread waits for messages. Some of torch's Python operators (indexing)
/// call C++ with the lock held, and another rank in the same process may need the lock to send the awaited message.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  void* held_;
};

/// `begin` runs before each wait. `end` runs after the wait with the result of `begin`, unless that is null.
struct GilHooks {
  void* (*begin)();
  void (*end)(void*);
};
/// Installed by the Python bindings; `hooks` lives as long as the process.
void set_gil_hooks(const GilHooks* hooks);

}  // namespace shardwise
