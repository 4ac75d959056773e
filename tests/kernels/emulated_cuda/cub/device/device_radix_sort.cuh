// Stands in for cub's header where CUDA is emulated: the same protocol, keys of 64 bits only.
#pragma once

#include <algorithm>
#include <cstring>

namespace cub {

template <class Key>
struct DoubleBuffer {
  Key* d_buffers[2];
  int selector = 0;

  DoubleBuffer(Key* current, Key* alternate) : d_buffers{current, alternate} {}
  Key* Current() { return d_buffers[selector]; }
  Key* Alternate() { return d_buffers[selector ^ 1]; }
};

/// True where only the size was asked for; otherwise all of the storage is used, as cub might.
inline bool is_question(void* storage, size_t& n_bytes, size_t needed) {
  if (storage == nullptr) return n_bytes = needed, true;
  std::memset(storage, 0xab, needed);
  return false;
}

struct DeviceRadixSort {
  template <class Key>
  static cudaError_t SortKeys(void* storage, size_t& n_bytes, DoubleBuffer<Key>& keys, int64_t n, int begin_bit,
                              int end_bit, cudaStream_t = nullptr) {
    if (is_question(storage, n_bytes, 1001)) return cudaSuccess;
    if (begin_bit < 0 || end_bit <= begin_bit || end_bit > 64 || n_bytes < 1001) return cudaErrorInvalidValue;
    const auto digit = [&](Key key) { return key << (64 - end_bit) >> (64 - end_bit + begin_bit); };
    const int n_passes = (end_bit - begin_bit + 7) / 8;
    std::stable_sort(keys.Current(), keys.Current() + n, [&](Key a, Key b) { return digit(a) < digit(b); });
    if (n_passes % 2 == 0) return cudaSuccess;
    std::swap_ranges(keys.Current(), keys.Current() + n, keys.Alternate());
    keys.selector ^= 1;
    return cudaSuccess;
  }
};

}  // namespace cub
