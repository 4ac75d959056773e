#include "ops/embedding/kernel_launch.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace shardwise {
namespace {

std::atomic<HostKernels>& host_kernels(c10::DeviceType type) {
  static std::array<std::atomic<HostKernels>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> by_type{};
  return by_type.at(static_cast<size_t>(type));
}

}  // namespace

void share_out(int64_t n, int64_t bytes_per_item, const std::function<void(int64_t, int64_t)>& part) {
  if (n > 0) at::parallel_for(0, n, std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(bytes_per_item, 1)), part);
}

void* current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

bool has_kernels(c10::Device device) {
  return device.is_cpu() || device.is_meta() || (kHasCudaKernels && device.is_cuda()) ||
         host_kernels(device.type()) != nullptr;
}

void set_host_kernels(c10::DeviceType type, HostKernels run) { host_kernels(type) = run; }

void run_host_kernel(c10::Device device, const std::function<void()>& kernel) {
  const HostKernels run = host_kernels(device.type());
  TORCH_CHECK_NOT_IMPLEMENTED(run, "[kernels] the tensors are on ", device,
                              ", for which this build of Shardwise has no kernels. Build it where torch knows CUDA and "
                              "nvcc is found, or use the CPU.");
  run(device, kernel);
}

}  // namespace shardwise
