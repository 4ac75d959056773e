// runtime/comm/gil_release.h: what a thread lets go of while it waits for other ranks.
#pragma once

namespace shardwise {

/// Lives while this thread waits for messages. Python's own operators may come here with the interpreter's lock held (indexing
/// does), which another rank in the same process needs to send what this one waits for.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  void* held_;
};

/// `begin` runs before each wait, `end` after it with what begin returned, unless that is null.
struct GilHooks {
  void* (*begin)();
  void (*end)(void*);
};
/// Installed by the Python bindings; `hooks` lives as long as the process.
void set_gil_hooks(const GilHooks* hooks);

}  // namespace shardwise
