// tests/support/either_world.h: the same claims on three threads, and on three processes where gloo_main.cpp started them.
#pragma once

#include "tests/support/ranks.h"

#include <functional>
#include <string>

namespace shardwise {

inline void on_ranks(const std::function<void(World&)>& body) {
  if (const auto processes = World::maybe_current())
    body(*processes);
  else
    run_ranks(3, body);
}

/// The text of the E that `call` throws on this rank, else "".
template <class E>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return {};
}

}  // namespace shardwise
