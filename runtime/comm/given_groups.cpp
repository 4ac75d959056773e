#include "runtime/comm/given_groups.h"

#include <algorithm>
#include <memory>
#include <mutex>

namespace shardwise {
namespace {

thread_local const GivenGroups* innermost = nullptr;

/// Those that are still held, by meshes made over them.
struct Held {
  std::mutex mutex;
  std::vector<std::weak_ptr<const Group>> groups;
};

Held& held() {
  static auto* held = new Held;
  return *held;
}

}  // namespace

GivenGroups::GivenGroups(ByRanks groups) : groups_(std::move(groups)), outer_(innermost) {
  innermost = this;
  const std::lock_guard lock(held().mutex);
  std::erase_if(held().groups, [](const auto& group) { return group.expired(); });
  for (const auto& [ranks, group] : groups_)
    if (group) held().groups.push_back(group);
}

GivenGroups::GivenGroups() : GivenGroups(ByRanks()) { are_absent_ = true; }

GivenGroups::~GivenGroups() { innermost = outer_; }

const GivenGroups* GivenGroups::current() { return innermost; }

void GivenGroups::close() {
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> dropped;  // their ends wait for threads: not under the lock
  const std::lock_guard lock(held().mutex);
  for (const auto& group : held().groups)
    if (const auto alive = group.lock())
      dropped.push_back(std::move(std::const_pointer_cast<Group>(alive)->process_group));
  held().groups.clear();
}

std::optional<GroupPtr> GivenGroups::find(const std::vector<int64_t>& ranks, int64_t rank) const {
  if (const auto found = groups_.find(ranks); found != groups_.end()) return found->second;
  const auto own = std::ranges::lower_bound(ranks, rank);
  if (own == ranks.end() || *own != rank) return GroupPtr();
  if (are_absent_) return std::make_shared<const Group>(Group{nullptr, ranks, own - ranks.begin()});
  return std::nullopt;
}

}  // namespace shardwise
