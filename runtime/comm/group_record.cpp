#include "runtime/comm/group_record.h"

#include "runtime/comm/gil_release.h"

namespace shardwise {
namespace {

std::atomic<uint64_t> n_groups{0};

}  // namespace

GroupRecord::GroupRecord() : number_(n_groups.fetch_add(1, std::memory_order_relaxed) + 1) {}

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
}

std::string GroupRecord::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

}  // namespace shardwise
