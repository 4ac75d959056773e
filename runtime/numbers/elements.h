// runtime/numbers/elements.h: 16-bit element types, and kernels compiled for several CPUs.
#pragma once

#include <cstdint>
#include <cstring>

// SHARDWISE_KERNEL compiles an entry point twice, with all functions that it calls inlined: for the baseline, and for AVX2 with FMA and F16C
// (x86-64-v3). SHARDWISE_WIDE_KERNEL adds AVX-512 (x86-64-v4). The loader picks one. Other architectures only have the baseline. An entry point
// with different code for each is several functions, marked with SHARDWISE_AVX512, SHARDWISE_AVX2 and SHARDWISE_BASELINE.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define SHARDWISE_KERNEL __attribute__((target_clones("arch=x86-64-v3", "default"), flatten))
#define SHARDWISE_WIDE_KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), flatten))
#define SHARDWISE_AVX512 __attribute__((target("arch=x86-64-v4"), flatten))
#define SHARDWISE_AVX2 __attribute__((target("arch=x86-64-v3"), flatten))
#define SHARDWISE_BASELINE __attribute__((target("default"), flatten))
#else
#define SHARDWISE_KERNEL
#define SHARDWISE_WIDE_KERNEL
#define SHARDWISE_BASELINE
#endif

namespace shardwise {

/// The upper half of a float32, rounded to nearest even.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    const uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    bits = static_cast<uint16_t>(value != value ? 0x7fc0 : rounded);
  }
  explicit operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};
using Half = _Float16;

}  // namespace shardwise
