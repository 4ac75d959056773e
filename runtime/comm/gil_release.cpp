#include "runtime/comm/gil_release.h"

#include <atomic>

namespace shardwise {
namespace {

std::atomic<const GilHooks*> gil_hooks{nullptr};

}  // namespace

GilRelease::GilRelease() : held_(nullptr) {
  if (const GilHooks* hooks = gil_hooks.load(std::memory_order_acquire)) held_ = hooks->begin();
}

GilRelease::~GilRelease() {
  if (held_) gil_hooks.load(std::memory_order_acquire)->end(held_);
}

void set_gil_hooks(const GilHooks* hooks) { gil_hooks.store(hooks, std::memory_order_release); }

}  // namespace shardwise
