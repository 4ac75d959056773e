#include "ops/embedding/kernel_launch.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise {

void share_out(int64_t n, int64_t bytes_per_item, const std::function<void(int64_t, int64_t)>& part) {
  if (n > 0) at::parallel_for(0, n, std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(bytes_per_item, 1)), part);
}

void* current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void check_is_cpu(c10::Device device) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      device.is_cpu(), "[kernels] the tensors are on ", device,
      ", for which this build of Shardwise has no kernels. Build it where torch knows CUDA and nvcc is "
      "found, or use the CPU.");
}

}  // namespace shardwise
