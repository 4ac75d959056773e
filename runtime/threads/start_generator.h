// runtime/threads/start_generator.h: the initial random number generator of a rank that is a thread.
#pragma once

#include <ATen/core/Generator.h>

namespace shardwise {

/// A copy of torch's default generator from the creation of the hub that gave this thread its last World. It is the same in all threads of
/// a hub, even after one of them has drawn plain tensors. Undefined in other threads.
inline at::Generator& start_generator() {
  static thread_local at::Generator generator;
  return generator;
}

}  // namespace shardwise
