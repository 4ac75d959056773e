#include "runtime/comm/late_group.h"

#include "runtime/comm/gil_release.h"

namespace shardwise {

c10d::ProcessGroup& LateGroup::made() {
  if (auto* const made = is_made_.load(std::memory_order_acquire)) return *made;
  const GilRelease no_gil;  // for the thread that makes the group
  const std::lock_guard lock(mutex_);
  if (!made_) made_ = make_();
  is_made_.store(made_.get(), std::memory_order_release);
  return *made_;
}

}  // namespace shardwise
