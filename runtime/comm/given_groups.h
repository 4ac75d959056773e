// runtime/comm/given_groups.h: groups that a program brings along, for meshes that keep them to themselves.
#pragma once

#include "runtime/comm/group.h"

#include <map>
#include <optional>

namespace shardwise {

/// While it lives, this thread's World::group() gives these for their ranks, and null for ranks that this one is none of: nothing
/// is made, and the World learns of nothing. Other ranks need not know of them.
class GivenGroups {
 public:
  using ByRanks = std::map<std::vector<int64_t>, GroupPtr>;  // ranks ascending

  explicit GivenGroups(ByRanks groups);
  /// Every group of this rank is absent: who it is and which ranks there are, and nothing to communicate over.
  GivenGroups();
  ~GivenGroups();
  GivenGroups(const GivenGroups&) = delete;
  GivenGroups& operator=(const GivenGroups&) = delete;

  /// Lets go of the process groups of all that ever were: their meshes cannot communicate any more. World::close() calls it.
  static void close();

  /// The innermost, null outside.
  static const GivenGroups* current();
  const ByRanks& groups() const { return groups_; }
  bool are_absent() const { return are_absent_; }
  /// Nothing where the World is to be asked. `rank`: this one.
  std::optional<GroupPtr> find(const std::vector<int64_t>& ranks, int64_t rank) const;

 private:
  ByRanks groups_;
  bool are_absent_ = false;
  const GivenGroups* outer_;
};

}  // namespace shardwise
