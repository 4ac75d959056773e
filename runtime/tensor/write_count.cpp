#include "runtime/tensor/write_count.h"

#include <cstring>

namespace shardwise {
namespace {

thread_local uint32_t inference_writes = 0;

}  // namespace

uint32_t write_count(const c10::TensorImpl& tensor) {
  const auto& version = tensor.version_counter();
  return version.enabled() ? version.current_version() : inference_writes;
}

// A VariableVersion is a pointer to the counter, which it does not show. Comparing by a change of the counter would lose a write that
// another thread counts meanwhile.
bool share_write_count(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  const auto &of_a = a.version_counter(), &of_b = b.version_counter();
  return of_a.enabled() && std::memcmp(&of_a, &of_b, sizeof(of_a)) == 0;
}

void count_inference_write() { ++inference_writes; }

}  // namespace shardwise
