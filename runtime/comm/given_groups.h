// runtime/comm/given_groups.h: process groups that the program supplies for its meshes; no other mesh uses them.
#pragma once

#include "runtime/comm/group.h"

#include <map>
#include <optional>

namespace shardwise {

class World;

/// A World of `rank` in a process that is not a rank: its meshes know their ranks but have no groups. While somebody holds it, the same
/// arguments return the same object. Throws: c10::ValueError if `rank` is not in [0, n_ranks).
std::shared_ptr<World> world_without_groups(int64_t rank, int64_t n_ranks);

/// During its lifetime, this thread's World::group() returns these groups for their ranks, and null for ranks that do not include this one. Any
/// other group that the World does not know is made by its members alone. Meshes of other scopes do not get the given groups.
class GivenGroups {
 public:
  using ByRanks = std::map<std::vector<int64_t>, GroupPtr>;  // ranks ascending

  explicit GivenGroups(ByRanks groups);
  /// Every group of this rank is absent: meshes know this rank and all ranks, but have nothing to communicate over. If `world` is given, it
  /// is World::current() meanwhile.
  explicit GivenGroups(std::shared_ptr<World> world = nullptr);
  ~GivenGroups();
  C10_DISABLE_COPY_AND_ASSIGN(GivenGroups);

  /// Releases the process groups of all groups ever given: their meshes cannot communicate any more. World::close() calls it.
  static void close();

  /// The innermost GivenGroups of this thread; null if there is none.
  static GivenGroups* current();
  const ByRanks& groups() const { return groups_; }
  bool are_absent() const { return are_absent_; }
  /// Null if World::current() is the thread's or the process's own.
  const std::shared_ptr<World>& world() const { return world_; }
  /// Adds a group that its members made alone.
  GroupPtr add(Group group);
  /// The group for `ranks`; nothing if the World must be asked instead. `rank`: this rank.
  std::optional<GroupPtr> find(const std::vector<int64_t>& ranks, int64_t rank) const;

 private:
  ByRanks groups_;
  bool are_absent_ = false;
  GivenGroups* outer_;
  std::shared_ptr<World> world_;
};

}  // namespace shardwise
