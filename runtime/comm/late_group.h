// runtime/comm/late_group.h: a process group that its members make when they first communicate over it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <functional>
#include <mutex>

namespace shardwise {

/// Stands in Group::process_group for a group that perhaps nobody needs, such as that of all ranks of a slice. open_group() (group_backend.h)
/// returns the group itself. The first communication of a group involves all its members, as backends require that connect then.
class LateGroup final : public c10d::ProcessGroup {
 public:
  using Make = std::function<c10::intrusive_ptr<c10d::ProcessGroup>()>;

  LateGroup(int64_t index, int64_t size, Make make)
      : ProcessGroup(static_cast<int>(index), static_cast<int>(size)), make_(std::move(make)) {}

  /// The first call makes the group, for which it waits for the other members. Thread-safe.
  c10d::ProcessGroup& made();

 private:
  const Make make_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::ProcessGroup> made_;
  std::atomic<c10d::ProcessGroup*> is_made_{nullptr};  // made_, for reading without the mutex
};

}  // namespace shardwise
