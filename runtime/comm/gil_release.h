// runtime/comm/gil_release.h: releases the Python interpreter's lock while a thread waits for other ranks.
#pragma once

namespace shardwise {

/// Lives while this thread waits for messages. Some of torch's Python operators (indexing) call C++ with the interpreter's lock held;
/// another rank in the same process may need the lock to send what this one waits for.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  void* held_;
};

/// `begin` runs before each wait. `end` runs after it, with what `begin` returned, unless that is null.
struct GilHooks {
  void* (*begin)();
  void (*end)(void*);
};
/// Installed by the Python bindings; `hooks` lives as long as the process.
void set_gil_hooks(const GilHooks* hooks);

}  // namespace shardwise
