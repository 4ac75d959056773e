#include "runtime/comm/group.h"

#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {

int64_t Group::index_of(int64_t rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  SW_CHECK_VALUE(found != ranks.end(),
                 "[group] rank {} is not a member of the group of ranks {}. Ask for one of its members.", rank, ranks);
  return found - ranks.begin();
}

}  // namespace shardwise
