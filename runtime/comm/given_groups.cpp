#include "runtime/comm/given_groups.h"

#include "runtime/comm/world.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>

namespace shardwise {
namespace {

thread_local GivenGroups* innermost = nullptr;

/// The given groups that meshes still hold.
struct Held {
  std::mutex mutex;
  std::set<std::weak_ptr<const Group>, std::owner_less<>> groups;
};

Held& held = *new Held;  // never destroyed: meshes may outlive main

}  // namespace

std::shared_ptr<World> world_without_groups(int64_t rank, int64_t n_ranks) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<int64_t, int64_t>, std::weak_ptr<World>>;  // may outlive main
  const std::lock_guard lock(mutex);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  auto& place = (*known)[{rank, n_ranks}];
  auto world = place.lock();
  if (!world) place = world = std::make_shared<World>(rank, n_ranks, nullptr, nullptr);
  return world;
}

GivenGroups::GivenGroups(ByRanks groups)
    : groups_(std::move(groups)), outer_(innermost), world_(outer_ ? outer_->world_ : nullptr) {
  innermost = this;
  const std::lock_guard lock(held.mutex);
  std::erase_if(held.groups, [](const auto& group) { return group.expired(); });
  for (const auto& [ranks, group] : groups_)
    if (group) held.groups.insert(group);
}

GivenGroups::GivenGroups(std::shared_ptr<World> world) : GivenGroups(ByRanks()) {
  are_absent_ = true;
  if (world) world_ = std::move(world);
}

GivenGroups::~GivenGroups() { innermost = outer_; }

GivenGroups* GivenGroups::current() { return innermost; }

void GivenGroups::close() {
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> dropped;  // destructors wait for threads: not under the lock
  const std::lock_guard lock(held.mutex);
  for (const auto& group : held.groups)
    if (const auto alive = group.lock())
      dropped.push_back(std::move(std::const_pointer_cast<Group>(alive)->process_group));
  held.groups.clear();
}

GroupPtr GivenGroups::add(Group group) {
  const auto added = std::make_shared<const Group>(std::move(group));
  const std::lock_guard lock(held.mutex);
  held.groups.insert(added);
  return groups_[added->ranks] = added;
}

std::optional<GroupPtr> GivenGroups::find(const std::vector<int64_t>& ranks, int64_t rank) const {
  if (const auto found = groups_.find(ranks); found != groups_.end()) return found->second;
  const auto own = std::ranges::lower_bound(ranks, rank);
  if (own == ranks.end() || *own != rank) return GroupPtr();
  if (are_absent_) return std::make_shared<const Group>(Group{nullptr, ranks, own - ranks.begin()});
  return std::nullopt;
}

}  // namespace shardwise
