#include "runtime/comm/world.h"

#include "runtime/comm/communication.h"
#include "runtime/comm/flight_watch.h"
#include "runtime/comm/gil_release.h"
#include "runtime/comm/given_groups.h"
#include "text/check.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace shardwise {
namespace {

thread_local std::shared_ptr<World> thread_world;

struct ProcessWorld {
  std::mutex mutex;
  std::shared_ptr<World> world;
};

/// Never destroyed, because a backend's threads may outlive static objects.
ProcessWorld& process_world = *new ProcessWorld;

std::vector<int64_t> checked_members(c10::ArrayRef<int64_t> ranks, int64_t n_ranks) {
  std::vector<int64_t> members = ranks.vec();
  std::sort(members.begin(), members.end());
  TORCH_CHECK_VALUE(!members.empty(), "[group] got no ranks. Name at least one.");
  for (const int64_t rank : {members.front(), members.back()})
    SW_CHECK_VALUE(rank >= 0 && rank < n_ranks,
                   "[group] rank {} of {} does not exist: the world has {} ranks. Use ranks in [0, {}).", rank,
                   ranks.vec(), n_ranks, n_ranks);
  const auto twin = std::adjacent_find(members.begin(), members.end());
  SW_CHECK_VALUE(twin == members.end(), "[group] rank {} occurs twice in {}. Name each rank once.", *twin, ranks.vec());
  return members;
}

}  // namespace

World::World(int64_t rank, int64_t size, c10::intrusive_ptr<c10d::ProcessGroup> everyone, MakeGroup make_group,
             MakeByMembers make_by_members)
    : rank_(rank),
      size_(size),
      everyone_(std::move(everyone)),
      make_group_(std::move(make_group)),
      make_by_members_(std::move(make_by_members)) {
  SW_CHECK_VALUE(rank >= 0 && rank < size, "[world] rank {} does not fit a world of {} ranks. Use a rank in [0, {}).",
                 rank, size, size);
  SW_CHECK_VALUE(everyone_ || size == 1 || !make_group_,  // without both it has no groups
                 "[world] a world of {} ranks needs a process group. Pass one.", size);
}

std::shared_ptr<World> World::maybe_current() {
  if (const auto* given = GivenGroups::current(); given && given->world()) return given->world();
  if (thread_world) return thread_world;
  const std::lock_guard lock(process_world.mutex);
  return process_world.world;
}

std::shared_ptr<World> World::current() {
  auto world = maybe_current();
  TORCH_CHECK_VALUE(
      world,
      "[world] no ranks have been started. Run under torchrun and call torch.distributed.init_process_group() "
      "(Python) or shardwise::init_from_env() (C++), or start ranks as threads with run_ranks(n, fn).");
  return world;
}

void World::set_thread(std::shared_ptr<World> world) {
  thread_world = std::move(world);
  FlightRecorder::begin_world(thread_world, /*is_thread=*/true);
  if (thread_world) start_flight_watch();
}

bool World::is_thread() { return thread_world != nullptr; }

void World::set_process(std::shared_ptr<World> world) {
  FlightRecorder::begin_world(world, /*is_thread=*/false);
  if (world) start_flight_watch();
  const std::lock_guard lock(process_world.mutex);
  process_world.world.swap(world);
}

GroupPtr World::everyone() {
  std::vector<int64_t> ranks(size_);
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(ranks);
}

GroupPtr World::group(c10::ArrayRef<int64_t> ranks, const Group* like) {
  auto members = checked_members(ranks, size_);
  auto* const given = GivenGroups::current();
  if (given)
    if (auto group = given->find(members, rank_)) return *group;
  const auto known = [&]() -> std::optional<GroupPtr> {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK_VALUE(!is_closed_,
                      "[group] the process groups of these ranks were destroyed, or the program is ending. Make meshes "
                      "after init_process_group().");
    const auto found = groups_.find(members);
    return found == groups_.end() ? std::nullopt : std::optional<GroupPtr>(found->second);
  };
  if (const auto group = known()) return *group;
  // One thread of a rank makes a group, and other threads that want the same group wait for it. Threads that make different groups do not
  // wait for each other, because other ranks may make them in another order.
  std::unique_lock<std::mutex> turn;
  {
    const GilRelease no_gil;
    std::unique_lock lock(mutex_);
    std::mutex& maker = makers_[members];
    lock.unlock();
    turn = std::unique_lock(maker);
  }
  if (const auto group = known()) return *group;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  MakeGroup make_group;
  {
    const std::lock_guard lock(mutex_);
    process_group = everyone_;
    make_group = make_group_;
  }
  // Not under the lock: making a group waits for other ranks and may call Python.
  const auto make = [&] {
    Communication making(Group{everyone_, everyone()->ranks, rank_, making_},
                         {.name = "make a group", .by_all = false});
    auto made = making.launch([&] { return make_group(members); });
    making.finish();
    return made;
  };
  const auto own = std::find(members.begin(), members.end(), rank_);
  if (given && make_by_members_ && members.size() > 1 && members.size() < static_cast<size_t>(size_))
    return given->add({make_by_members_(members, like), members, own - members.begin()});
  if (members.size() < static_cast<size_t>(size_)) process_group = members.size() > 1 && make_group ? make() : nullptr;
  auto group =
      own == members.end() ? nullptr : std::make_shared<Group>(Group{process_group, members, own - members.begin()});
  const std::lock_guard lock(mutex_);
  if (is_closed_ && group) group->process_group = nullptr;  // the World was closed meanwhile
  return groups_.emplace(std::move(members), std::move(group)).first->second;
}

void World::close() {
  if (!is_thread()) GivenGroups::close();
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> dropped;  // destructors wait for threads: not under the lock
  const std::lock_guard closing(mutex_);
  is_closed_ = true;
  make_group_ = nullptr;
  dropped.push_back(std::move(everyone_));
  for (const auto& [ranks, group] : groups_)
    if (group) dropped.push_back(std::move(group->process_group));
}

}  // namespace shardwise
