#include "runtime/comm/lost_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <pthread.h>

#include <map>
#include <mutex>

namespace shardwise {

std::atomic<bool> detail::some_group_is_lost{false};

namespace {

std::atomic<uint64_t> last_before_fork{0};

/// Never destroyed: threads may outlive the statics they use.
struct Reasons {
  std::mutex mutex;
  std::map<uint64_t, std::string> by_group;
};

Reasons& reasons() {
  static auto* const all = new Reasons;
  return *all;
}

void lose_all_in_child() {
  last_before_fork = next_group_number();
  detail::some_group_is_lost = true;
}

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, &lose_all_in_child);

}  // namespace

void lose_group(uint64_t number, const std::string& why) {
  const std::lock_guard lock(reasons().mutex);
  reasons().by_group.emplace(number, why);
  detail::some_group_is_lost = true;
}

void check_not_lost(const Group& group, const std::string& call) {
  TORCH_CHECK_VALUE(
      group.number > last_before_fork.load(),
      fmt::format("[{}] this process was forked from a rank and is none itself: the group of ranks {} is its parent's, "
                  "which alone can send messages. Use plain tensors in a forked process, as in the dataset of a "
                  "DataLoader with workers.",
                  call, group.ranks));
  const std::lock_guard lock(reasons().mutex);
  const auto found = reasons().by_group.find(group.number);
  TORCH_CHECK_WITH(DistBackendError, found == reasons().by_group.end(),
                   fmt::format("[{}] the group of ranks {} takes no more messages, because one failed before: {}\n"
                               "Start the ranks again, or have all of them call destroy_process_group() and "
                               "init_process_group(), and make their meshes anew.",
                               call, group.ranks, found == reasons().by_group.end() ? "" : found->second));
}

}  // namespace shardwise
