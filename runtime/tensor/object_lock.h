// runtime/tensor/object_lock.h: locks for objects of which few are ever used by two threads at once.
#pragma once

#include <memory>
#include <mutex>

namespace shardwise {

/// Locks the object at `address` during its lifetime. A mutex exists only while somebody holds or wants it, so objects need no mutex of
/// their own. While waiting, this thread releases Python's interpreter lock, which the holder may need.
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
