#include "runtime/tensor/write_count.h"

namespace shardwise {
namespace {

thread_local uint32_t inference_writes = 0;

}  // namespace

uint32_t write_count(const c10::TensorImpl& tensor) {
  const auto& version = tensor.version_counter();
  return version.enabled() ? version.current_version() : inference_writes;
}

void count_inference_write() { ++inference_writes; }

}  // namespace shardwise
