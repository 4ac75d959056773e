// ops/embedding/kernel_launch.h: a kernel of kernels/ runs where the memory is: on the CPU's threads, or on the current stream of a GPU.
//
//   run_kernel(table.device(),
//              [&] { share_out(n, bytes, [&](int64_t begin, int64_t end) { kernels::look_up(..., begin, end); }); },
//              [&](auto stream) { kernels::cuda::look_up(..., stream); });
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace shardwise {

#ifdef SHARDWISE_HAS_CUDA
inline constexpr bool kHasCudaKernels = true;
#else
inline constexpr bool kHasCudaKernels = false;
#endif

/// True where this build has kernels for memory of `device`.
inline bool has_kernels(c10::Device device) { return device.is_cpu() || (kHasCudaKernels && device.is_cuda()); }

/// Calls `part(begin, end)` for parts of [0, n) on several threads.
void share_out(int64_t n, int64_t bytes_per_item, const std::function<void(int64_t, int64_t)>& part);

/// The cudaStream_t that work on `device` is queued on now.
void* current_stream(c10::Device device);

/// Throws: c10::NotImplementedError for any device but the CPU.
void check_is_cpu(c10::Device device);

/// Returns what `on_cpu()` or `on_gpu(stream)` returns, by where `device` is. `on_gpu` takes `auto`: builds without CUDA do not
/// instantiate it, so they need no symbol of kernels/cuda/.
template <class OnCpu, class OnGpu>
auto run_kernel(c10::Device device, const OnCpu& on_cpu, [[maybe_unused]] const OnGpu& on_gpu) {
  if constexpr (kHasCudaKernels)
    if (device.is_cuda()) return on_gpu(current_stream(device));
  check_is_cpu(device);
  return on_cpu();
}

}  // namespace shardwise
