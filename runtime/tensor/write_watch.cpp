#include "runtime/tensor/write_watch.h"

#include "runtime/tensor/owned_rows.h"

#include <mutex>
#include <unordered_map>
#include <vector>

namespace shardwise {

/// By DTensorImpl::memory_id().
struct WriteWatch::Registry {
  std::mutex mutex;
  std::unordered_multimap<uint64_t, std::shared_ptr<const Action>> actions;
};

WriteWatch::Registry& WriteWatch::registry() {
  static auto* registry = new Registry;
  return *registry;
}

WriteWatch::WriteWatch(const DTensorImpl& watched, Action before_write)
    : memory_id_(watched.memory_id()), before_write_(std::make_shared<const Action>(std::move(before_write))) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.actions.emplace(memory_id_, before_write_);
  count_.fetch_add(1, std::memory_order_relaxed);
}

WriteWatch::~WriteWatch() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  const auto [begin, end] = known.actions.equal_range(memory_id_);
  for (auto action = begin; action != end; ++action)
    if (action->second == before_write_) {
      known.actions.erase(action);
      break;
    }
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void WriteWatch::note_write(const DTensorImpl& written) {
  if (const auto& rows = written.owned_rows()) rows->note_write();
  if (!any()) return;
  std::vector<std::shared_ptr<const Action>> actions;  // called without the lock: they may wait for other ranks
  {
    Registry& known = registry();
    const std::lock_guard lock(known.mutex);
    const auto [begin, end] = known.actions.equal_range(written.memory_id());
    for (auto action = begin; action != end; ++action) actions.push_back(action->second);
  }
  for (const auto& action : actions) (*action)();
}

}  // namespace shardwise
