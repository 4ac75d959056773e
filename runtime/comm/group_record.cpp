#include "runtime/comm/group_record.h"

#include "runtime/comm/gil_release.h"
#include "runtime/comm/group.h"
#include "text/check.h"

#include <pthread.h>

namespace shardwise {
namespace {

std::atomic<uint64_t> n_groups{0};
std::atomic<uint64_t> last_before_fork{0};

}  // namespace

std::atomic<bool> GroupRecord::some_is_lost_{false};

GroupRecord::GroupRecord() : number_(n_groups.fetch_add(1, std::memory_order_relaxed) + 1) {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, &lose_all_in_child);
}

void GroupRecord::lose_all_in_child() {
  last_before_fork = n_groups.load();
  some_is_lost_ = true;
}

int64_t GroupRecord::next_number(const std::string& kind) {
  const std::lock_guard lock(mutex_);
  return numbers_[kind]++;
}

GroupRecord::Turn GroupRecord::turn(bool& is_first) {
  const GilRelease no_gil;
  Turn turn(turns_);
  if (first_ == std::thread::id()) first_ = std::this_thread::get_id();
  is_first = first_ == std::this_thread::get_id();
  return turn;
}

void GroupRecord::lose(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (loss_.empty()) loss_ = why;
  some_is_lost_ = true;
}

std::string GroupRecord::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

void check_not_lost(const Group& group, const std::string& call) {
  SW_CHECK_VALUE(
      group.record->number() > last_before_fork.load(),
      "[{}] this process was forked from a rank and is not a rank itself: only its parent can send messages in the "
      "group of ranks {}. Use plain tensors in a forked process, as in the dataset of a DataLoader with workers.",
      call, group.ranks);
  const std::string loss = group.record->loss();
  SW_CHECK_WITH(DistBackendError, loss.empty(),
                "[{}] the group of ranks {} takes no more messages, because one failed before: {}\n"
                "Start the ranks again, or have all of them call destroy_process_group() and "
                "init_process_group(), and make their meshes anew.",
                call, group.ranks, loss);
}

}  // namespace shardwise
