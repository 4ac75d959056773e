// runtime/threads/start_generator.h: where the random numbers of a rank begin that is a thread.
#pragma once

#include <ATen/core/Generator.h>

namespace shardwise {

/// torch's default generator as it was when the hub was made of which this thread last took a World: the same in all threads of a hub, also
/// after one of them has drawn plain tensors. Undefined in other threads.
inline at::Generator& start_generator() {
  static thread_local at::Generator generator;
  return generator;
}

}  // namespace shardwise
