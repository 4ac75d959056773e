// runtime/comm/world.h: all ranks of the program from the view of one rank; creates groups.
//
// A process started by torchrun has one World (World::set_process). Ranks that are threads of one process have one each
// (World::set_thread), so there is no global "rank".
#pragma once

#include "runtime/comm/group.h"

#include <c10/util/ArrayRef.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace shardwise {

class World {
 public:
  /// Creates a group of `ranks` (ascending, at least two, not all of the world). Every rank of the world calls it, members or not, in the
  /// same order; it returns null on non-members.
  using MakeGroup = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::vector<int64_t>& ranks)>;

  /// Creates a group of `ranks` on these ranks alone, like another group, or with the defaults if `like` is null.
  using MakeByMembers =
      std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::vector<int64_t>& ranks, const Group* like)>;

  /// Without `make_by_members`, the other ranks need not call `make_group`, and groups that members make alone are made by it.
  World(int64_t rank, int64_t size, c10::intrusive_ptr<c10d::ProcessGroup> everyone, MakeGroup make_group,
        MakeByMembers make_by_members = nullptr);

  /// The World of this thread, or else of this process.
  /// Throws: c10::ValueError saying how to start one (torchrun, init_process_group, run_ranks).
  static std::shared_ptr<World> current();
  /// Null if there is no World.
  static std::shared_ptr<World> maybe_current();
  static void set_thread(std::shared_ptr<World> world);
  static void set_process(std::shared_ptr<World> world);
  /// True if this thread is a rank by itself. Such ranks share everything that a process has once.
  static bool is_thread();

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  /// The group of `ranks`, given in any order (the group's order is ascending). Created once and then kept. Null on non-members.
  /// Collective over the world if the group is new.
  /// Throws: c10::ValueError for an unknown or duplicate rank.
  ///
  /// Under GivenGroups the members of a new group make it alone, like the group `like`.
  GroupPtr group(c10::ArrayRef<int64_t> ranks, const Group* like = nullptr);
  /// The group of all ranks. Sends nothing.
  GroupPtr everyone();

  /// Drops all process groups, which meshes would otherwise keep alive; their threads end if nobody else holds them. Sending over them
  /// afterwards is an error. Pre: no communication is in flight.
  void close();

 private:
  int64_t rank_;
  int64_t size_;
  c10::intrusive_ptr<c10d::ProcessGroup> everyone_;
  MakeGroup make_group_;
  const MakeByMembers make_by_members_;
  std::shared_ptr<GroupRecord> making_ = std::make_shared<GroupRecord>();  // of the calls in which ranks make groups
  std::mutex mutex_;
  std::map<std::vector<int64_t>, std::shared_ptr<Group>> groups_;
  std::map<std::vector<int64_t>, std::mutex> makers_;  // by ranks; held by the thread that makes the group
  bool is_closed_ = false;
};

}  // namespace shardwise
