#include "runtime/comm/given_groups.h"

#include <algorithm>

namespace shardwise {
namespace {

thread_local const GivenGroups* innermost = nullptr;

}  // namespace

GivenGroups::GivenGroups(ByRanks groups) : groups_(std::move(groups)), outer_(innermost) { innermost = this; }

GivenGroups::~GivenGroups() { innermost = outer_; }

const GivenGroups* GivenGroups::current() { return innermost; }

std::optional<GroupPtr> GivenGroups::find(const std::vector<int64_t>& ranks, int64_t rank) const {
  if (const auto found = groups_.find(ranks); found != groups_.end()) return found->second;
  if (!std::ranges::binary_search(ranks, rank)) return GroupPtr();
  return std::nullopt;
}

}  // namespace shardwise
