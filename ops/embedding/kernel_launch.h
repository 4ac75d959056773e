// ops/embedding/kernel_launch.h: runs a kernel of kernels/ on the device of its memory: on the CPU's threads, or on the current stream of a GPU.
//
//   run_parts(table.device(), n, bytes, [&](auto... where) { kernels::look_up(..., where...); });   // (begin, end), or (stream)
#pragma once

#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>

namespace shardwise {

#ifdef SHARDWISE_HAS_CUDA
inline constexpr bool kHasCudaKernels = true;
#else
inline constexpr bool kHasCudaKernels = false;
#endif

/// True where there are kernels for memory of `device`; also for meta.
bool has_kernels(c10::Device device);

/// Calls `part(begin, end)` for parts of [0, n) on several threads.
void share_out(int64_t n, int64_t bytes_per_item, const std::function<void(int64_t, int64_t)>& part);

/// The cudaStream_t that work on `device` is queued on now.
void* current_stream(c10::Device device);

/// Runs the CPU's kernels on the memory of a simulated device, as in tests. The device is current while the kernel runs.
using HostKernels = void (*)(c10::Device device, const std::function<void()>& kernel);
void set_host_kernels(c10::DeviceType type, HostKernels run);

/// Throws: c10::NotImplementedError for a device type without set_host_kernels().
void run_host_kernel(c10::Device device, const std::function<void()>& kernel);

/// Calls `on_cpu()` or `on_gpu(stream)`, depending on `device`, and returns its result. `on_gpu` takes `auto`: builds without CUDA do not instantiate
/// it, so they need no symbol of kernels/cuda/. A device is current while its kernel is launched. On meta no kernel runs, and the result is 0.
template <class OnCpu, class OnGpu>
std::invoke_result_t<OnCpu> run_kernel(c10::Device device, const OnCpu& on_cpu, [[maybe_unused]] const OnGpu& on_gpu) {
  if (device.is_cpu()) return on_cpu();
  if (device.is_meta()) return std::invoke_result_t<OnCpu>();
  const c10::DeviceGuard guard(device);
  if constexpr (kHasCudaKernels)
    if (device.is_cuda()) return on_gpu(current_stream(device));
  if constexpr (std::is_void_v<std::invoke_result_t<OnCpu>>) {
    run_host_kernel(device, on_cpu);
  } else {
    std::optional<std::invoke_result_t<OnCpu>> result;
    run_host_kernel(device, [&] { result = on_cpu(); });
    return *result;
  }
}

/// Calls `kernel(begin, end)` for parts of [0, n) on several CPU threads, or `kernel(stream)` on a GPU. `kernel` takes `auto...`.
template <class Kernel>
void run_parts(c10::Device device, int64_t n, int64_t bytes_per_item, const Kernel& kernel) {
  run_kernel(
      device, [&] { share_out(n, bytes_per_item, [&](int64_t begin, int64_t end) { kernel(begin, end); }); },
      [&](auto stream) { kernel(stream); });
}

}  // namespace shardwise
