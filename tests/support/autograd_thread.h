// tests/support/autograd_thread.h: reads thread-local options as autograd's threads do.
#pragma once

#include <ATen/ThreadLocalState.h>

#include <thread>

namespace shardwise {

/// Returns the result of `read` on a thread that works for this one as autograd's do.
template <class Read>
auto on_autograd_thread(const Read& read) {
  const at::ThreadLocalState state;
  decltype(read()) result{};
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    result = read();
  }).join();
  return result;
}

}  // namespace shardwise
