#include "runtime/tensor/reduced_value.h"

#include "runtime/tensor/write_count.h"

namespace shardwise {

ReducedValue::ReducedValue(const DTensorImpl& partial, at::Tensor tensor, uint32_t write_count)
    : tensor_(std::move(tensor)),
      write_count_(write_count),
      watch_(partial, [is_stale = is_stale_] { is_stale->store(true, std::memory_order_relaxed); }) {}

bool ReducedValue::is_of(const DTensorImpl& partial) const {
  return !is_stale_->load(std::memory_order_relaxed) && write_count_ == write_count(partial);
}

}  // namespace shardwise
