#include "runtime/tensor/tensor_memory.h"

#include <utility>

namespace shardwise {

std::shared_ptr<const TensorMemory::Action> TensorMemory::before_writes(Action action) {
  auto kept = std::make_shared<const Action>(std::move(action));
  const std::lock_guard lock(mutex_);
  actions_.push_back(kept);
  has_actions_.store(true, std::memory_order_release);
  return kept;
}

void TensorMemory::act() {
  std::vector<std::shared_ptr<const Action>>
      living;  // called without the lock, because an action may take locks itself
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : actions_)
      if (auto action = each.lock()) living.push_back(std::move(action));
    if (living.size() < actions_.size()) actions_.assign(living.begin(), living.end());
    has_actions_.store(!living.empty(), std::memory_order_release);
  }
  for (const auto& action : living) (*action)();
}

}  // namespace shardwise
