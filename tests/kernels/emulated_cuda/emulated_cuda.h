// tests/kernels/emulated_cuda/emulated_cuda.h: as much of CUDA as the kernels use, on the CPU, so that they run where no GPU is.
//
// Included ahead of a .cu that a C++ compiler reads. A block's threads are fibers, one running at a time, that change places where
// threads wait for each other; blocks run one after the other, every second one from its last thread to the first. Threads that wait for
// ones that will not come end the program. With -fsanitize=address,undefined: accesses out of bounds and misaligned words.
// Not found: races within a warp, what caches do, speed.
#pragma once

#include <cuda_runtime.h>

#include <math.h>

#include <cstdint>
#include <cstring>
#include <functional>

extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the thread that runs

namespace emulated_cuda {

/// Runs `body` once for each thread of the grid.
cudaError_t run(dim3 grid, dim3 block, const std::function<void()>& body);

/// Waits for the threads of this warp in `mask`; for all of the block.
void wait_for(unsigned mask);
void wait_for_block();

/// What thread `lane` of this warp handed to exchange() most recently, all of `mask` having called it.
uint64_t exchange(unsigned mask, uint64_t value, unsigned lane);
unsigned lane();

template <class Value>
Value shuffle(unsigned mask, Value value, unsigned from) {
  static_assert(sizeof(Value) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(mask, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emulated_cuda

#undef __shared__
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __shared__ static

inline void __syncthreads() { emulated_cuda::wait_for_block(); }

template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, unsigned step) {
  return emulated_cuda::shuffle(mask, value, emulated_cuda::lane() ^ step);
}

template <class Value>
Value __shfl_sync(unsigned mask, Value value, unsigned from, unsigned width) {
  return emulated_cuda::shuffle(mask, value, (emulated_cuda::lane() & ~(width - 1)) + from % width);
}

template <class Word>
Word __ldg(const Word* from) {
  return *from;
}

template <class Word>
void __stcs(Word* into, Word word) {
  *into = word;
}

template <class Word>
void __stwb(Word* into, Word word) {
  *into = word;
}

inline void atomicMin(long long* at, long long value) { *at = value < *at ? value : *at; }
inline void atomicMax(long long* at, long long value) { *at = value > *at ? value : *at; }
inline void atomicAdd(unsigned long long* at, unsigned long long value) { *at += value; }

template <class... Params>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Params... args) {
  return emulated_cuda::run(config->gridDim, config->blockDim, [&] { kernel(args...); });
}
