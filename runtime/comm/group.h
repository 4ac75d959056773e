// runtime/comm/group.h: a set of ranks that communicate, backed by a c10d process group.
#pragma once

#include "runtime/comm/group_record.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace shardwise {

/// A communicator. `ranks` are global, in the group's own order. `process_group` is null in a group of one, and after its World was closed.
struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::vector<int64_t> ranks;
  int64_t index = 0;  // this rank's index in `ranks`
  std::shared_ptr<GroupRecord> record = std::make_shared<GroupRecord>();

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  /// The index of global `rank` in `ranks`. Throws: c10::ValueError for a non-member.
  int64_t index_of(int64_t rank) const;
};

/// Throws for a lost group, in the name of `call` ("all_reduce for aten::mm"): c10::DistBackendError with the first reason, or
/// c10::ValueError in a forked process.
void check_not_lost(const Group& group, const std::string& call);

using GroupPtr = std::shared_ptr<const Group>;

}  // namespace shardwise
