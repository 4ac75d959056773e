// runtime/tensor/version_counter.h: whether autograd counts the writes to two tensors together.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstring>

namespace shardwise {

/// True if both refer to one counter, so that a write to either one counts for both. Only reads. False for tensors made in inference mode,
/// which have no counter. A VariableVersion is a pointer to the counter, which it does not expose. Bumping one counter and comparing the other
/// would lose a concurrent bump of another thread.
inline bool share_version_counter(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  const auto &of_a = a.version_counter(), &of_b = b.version_counter();
  return of_a.enabled() && std::memcmp(&of_a, &of_b, sizeof(of_a)) == 0;
}

}  // namespace shardwise
