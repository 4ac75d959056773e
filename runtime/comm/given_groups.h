// runtime/comm/given_groups.h: groups that a program brings along, for meshes that keep them to themselves.
#pragma once

#include "runtime/comm/group.h"

#include <map>
#include <optional>

namespace shardwise {

class World;

/// A World of `rank` in a process that is no rank: its meshes know their ranks and have no groups. One object per rank and number of
/// ranks while somebody holds it. Throws: c10::ValueError where `rank` is not in [0, n_ranks).
std::shared_ptr<World> world_without_groups(int64_t rank, int64_t n_ranks);

/// While it lives, this thread's World::group() gives these for their ranks, and null for ranks that this one is none of: nothing
/// is made, and the World learns of nothing. Other ranks need not know of them.
class GivenGroups {
 public:
  using ByRanks = std::map<std::vector<int64_t>, GroupPtr>;  // ranks ascending

  explicit GivenGroups(ByRanks groups);
  /// Every group of this rank is absent: who it is and which ranks there are, and nothing to communicate over. A `world` that is given is
  /// World::current() meanwhile.
  explicit GivenGroups(std::shared_ptr<World> world = nullptr);
  ~GivenGroups();
  GivenGroups(const GivenGroups&) = delete;
  GivenGroups& operator=(const GivenGroups&) = delete;

  /// Lets go of the process groups of all that ever were: their meshes cannot communicate any more. World::close() calls it.
  static void close();

  /// The innermost, null outside.
  static const GivenGroups* current();
  const ByRanks& groups() const { return groups_; }
  bool are_absent() const { return are_absent_; }
  /// Null where it is the thread's or the process's.
  const std::shared_ptr<World>& world() const { return world_; }
  /// Nothing where the World is to be asked. `rank`: this one.
  std::optional<GroupPtr> find(const std::vector<int64_t>& ranks, int64_t rank) const;

 private:
  ByRanks groups_;
  bool are_absent_ = false;
  const GivenGroups* outer_;
  std::shared_ptr<World> world_;
};

}  // namespace shardwise
