// Stands in for cub's header where CUDA is emulated.
#pragma once

#include "device_radix_sort.cuh"

#include <numeric>

namespace cub {

struct DeviceScan {
  template <class Value>
  static cudaError_t InclusiveSum(void* storage, size_t& n_bytes, const Value* from, Value* into, int64_t n,
                                  cudaStream_t = nullptr) {
    if (is_question(storage, n_bytes, 77)) return cudaSuccess;
    std::partial_sum(from, from + n, into);
    return n_bytes < 77 ? cudaErrorInvalidValue : cudaSuccess;
  }
};

}  // namespace cub
