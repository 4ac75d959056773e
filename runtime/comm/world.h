// runtime/comm/world.h: every rank of the program as one rank sees it, and the maker of groups.
//
// A process started by torchrun has one World (World::set_process). Ranks that are threads of one process each have
// their own (World::set_thread), so no global holds "the" rank.
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
  /// Makes a group of `ranks` (ascending, at least two, not all of the world). Called on every rank of the world, in one
  /// order, members and others; returns null on the others.
  using MakeGroup = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::vector<int64_t>& ranks)>;

  World(int64_t rank, int64_t size, c10::intrusive_ptr<c10d::ProcessGroup> everyone, MakeGroup make_group);

  /// The World of this thread, else of this process.
  /// Throws: c10::ValueError saying how to start one (torchrun, init_process_group, run_ranks).
  static std::shared_ptr<World> current();
  /// Null where there is none.
  static std::shared_ptr<World> maybe_current();
  static void set_thread(std::shared_ptr<World> world);
  static void set_process(std::shared_ptr<World> world);
  /// True where this thread is a rank of its own: ranks share what the process has once.
  static bool is_thread();

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  /// The group of `ranks` in any order (its own order is ascending), made once and then kept. Null on non-members.
  /// Collective over the world where the group is new.
  /// Throws: c10::ValueError for an unknown or duplicate rank.
  GroupPtr group(c10::ArrayRef<int64_t> ranks);

  /// Drops all process groups, which meshes would keep alive otherwise: their threads end where nobody else holds them.
  /// What is sent over them from then on is an error. Pre: no communication is under way.
  void close();

 private:
  int64_t rank_;
  int64_t size_;
  c10::intrusive_ptr<c10d::ProcessGroup> everyone_;
  MakeGroup make_group_;
  std::shared_ptr<GroupRecord> making_ = std::make_shared<GroupRecord>();  // of all ranks, where they make groups
  std::mutex mutex_;
  std::map<std::vector<int64_t>, std::shared_ptr<Group>> groups_;
  bool is_closed_ = false;
};

}  // namespace shardwise
