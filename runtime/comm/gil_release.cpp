#include "runtime/comm/gil_release.h"

#include <atomic>

namespace shardwise {
namespace {

std::atomic<const WaitHooks*> wait_hooks{nullptr};

}  // namespace

Waiting::Waiting() : held_(nullptr) {
  if (const WaitHooks* hooks = wait_hooks.load(std::memory_order_acquire)) held_ = hooks->begin();
}

Waiting::~Waiting() {
  if (held_) wait_hooks.load(std::memory_order_acquire)->end(held_);
}

void set_wait_hooks(const WaitHooks* hooks) { wait_hooks.store(hooks, std::memory_order_release); }

}  // namespace shardwise
