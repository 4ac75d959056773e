#include "runtime/tensor/object_lock.h"

#include "runtime/comm/gil_release.h"

#include <map>

namespace shardwise {
namespace {

std::shared_ptr<std::mutex> mutex_of(const void* address) {
  static std::mutex guard;
  static auto* mutexes = new std::map<const void*, std::weak_ptr<std::mutex>>;
  const std::lock_guard held(guard);
  std::erase_if(*mutexes, [](const auto& entry) { return entry.second.expired(); });
  auto mutex = (*mutexes)[address].lock();
  if (!mutex) (*mutexes)[address] = mutex = std::make_shared<std::mutex>();
  return mutex;
}

}  // namespace

ObjectLock::ObjectLock(const void* address) : mutex_(mutex_of(address)) {
  if (mutex_->try_lock()) return;
  const GilRelease waiting;
  mutex_->lock();
}

ObjectLock::~ObjectLock() { mutex_->unlock(); }

}  // namespace shardwise
