#include "runtime/comm/lost_groups.h"

#include "text/check.h"

#include <fmt/ranges.h>

#include <pthread.h>

namespace shardwise {

std::atomic<bool> detail::some_group_is_lost{false};

namespace {

std::atomic<uint64_t> last_before_fork{0};

void lose_all_in_child() {
  last_before_fork = GroupRecord().number();
  detail::some_group_is_lost = true;
}

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, &lose_all_in_child);

}  // namespace

void lose_group(GroupRecord& group, const std::string& why) {
  group.lose(why);
  detail::some_group_is_lost = true;
}

void check_not_lost(const Group& group, const std::string& call) {
  SW_CHECK_VALUE(
      group.record->number() > last_before_fork.load(),
      "[{}] this process was forked from a rank and is not a rank itself: only its parent can send messages in the "
      "group of ranks {}. Use plain tensors in a forked process, as in the dataset of a DataLoader with workers.",
      call, group.ranks);
  const std::string loss = group.record->loss();
  TORCH_CHECK_WITH(DistBackendError, loss.empty(),
                   fmt::format("[{}] the group of ranks {} takes no more messages, because one failed before: {}\n"
                               "Start the ranks again, or have all of them call destroy_process_group() and "
                               "init_process_group(), and make their meshes anew.",
                               call, group.ranks, loss));
}

}  // namespace shardwise
