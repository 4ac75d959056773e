// runtime/comm/group.h: a set of ranks that communicate, backed by a c10d process group.
#pragma once

#include "runtime/comm/group_record.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace shardwise {

/// A communicator. `ranks` are global, in the group's own order. `process_group` is null in a group of one, after its World was closed, and if
/// the group sends nothing.
struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::vector<int64_t> ranks;
  int64_t index = 0;  // this rank's index in `ranks`
  std::shared_ptr<GroupRecord> record = std::make_shared<GroupRecord>();
  /// False for tensors on meta: a Communication of this group is planned and given to readers, but nothing is sent, received or compared.
  bool sends = true;

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  /// The index of global `rank` in `ranks`. Throws: c10::ValueError for a non-member.
  int64_t index_of(int64_t rank) const;
};

/// Throws for a lost group, in the name of `call` ("all_reduce for aten::mm"): c10::DistBackendError with the first reason, or
/// c10::ValueError in a forked process.
void check_not_lost(const Group& group, const std::string& call);

using GroupPtr = std::shared_ptr<const Group>;

/// The same ranks, for tensors on meta, with a record of its own: one rank may work on meta alone. Null for null.
GroupPtr without_sending(const GroupPtr& group);

}  // namespace shardwise
