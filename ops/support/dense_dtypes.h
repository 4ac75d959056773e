// ops/support/dense_dtypes.h: errors of dense operators for dtypes that they do not take, where a kernel of ours would take them.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <ATen/ops/ones.h>

#include <atomic>

namespace shardwise {

/// Calls `dense` with a plain tensor of one element of the dtype, device and number of dims of `self`, at the first call for a dtype and kind of
/// device. Throws: its error. Each call in the source has its own memory of the dtypes that were taken.
template <class Dense>
void check_dtype(const at::Tensor& self, const Dense& dense) {
  static std::atomic<uint64_t> taken[c10::COMPILE_TIME_MAX_DEVICE_TYPES];
  auto& known = taken[static_cast<size_t>(self.device().type())];
  const uint64_t bit = uint64_t{1} << static_cast<int>(self.scalar_type());
  if (known.load(std::memory_order_relaxed) & bit) return;
  dense(at::ones(Dims(self.dim(), 1), at::TensorOptions().dtype(self.scalar_type()).device(self.device())));
  known.fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace shardwise
