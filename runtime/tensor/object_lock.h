// runtime/tensor/object_lock.h: a lock for objects of which few are ever used by two threads at once.
#pragma once

#include <memory>
#include <mutex>

namespace shardwise {

/// Holds the lock of the object at `address` while it lives. Locks exist only while somebody holds or wants them, so objects need no
/// mutex of their own. While it waits, this thread lets go of Python's interpreter lock, which the holder may need.
class ObjectLock {
 public:
  explicit ObjectLock(const void* address);
  ~ObjectLock();
  ObjectLock(const ObjectLock&) = delete;
  ObjectLock& operator=(const ObjectLock&) = delete;

 private:
  std::shared_ptr<std::mutex> mutex_;
};

}  // namespace shardwise
