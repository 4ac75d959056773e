// runtime/numbers/philox.h: the random bits of many blocks at once. Only for sources of this folder.
//
// Block b of Philox-4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011) has the counter (0, 0, b), and holds 64 bits
// for element 2b and 64 bits for element 2b + 1. torch's at::Philox4_32 gives the same bits for the subsequence b.
#pragma once

#include "runtime/numbers/elements.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace shardwise {

/// A word of each of several blocks: the lower half of a 64-bit lane. Upper halves hold anything.
using Lanes4 [[gnu::vector_size(32)]] = uint64_t;
using Lanes8 [[gnu::vector_size(64)]] = uint64_t;

template <class Lanes>
inline constexpr int64_t kLanes = sizeof(Lanes) / sizeof(uint64_t);

/// Blocks are drawn in multiples of this number.
inline constexpr int64_t kBlocksAtOnce = 8;

/// Multiplies the lower halves of lanes. Compilers do not find the instructions of AVX2 and AVX-512 for it.
struct Multiply {
  template <class Lanes>
  void operator()(const Lanes& a, const Lanes& b, Lanes& product) const {
    for (int64_t i = 0; i < kLanes<Lanes>; ++i)
      product[i] = uint64_t{static_cast<uint32_t>(a[i])} * static_cast<uint32_t>(b[i]);
  }
};
#ifdef SHARDWISE_AVX2
struct MultiplyByAvx2 {
  __attribute__((target("arch=x86-64-v3"))) void operator()(const Lanes4& a, const Lanes4& b, Lanes4& product) const {
    using Halves [[gnu::vector_size(32)]] = int32_t;
    product =
        reinterpret_cast<Lanes4>(__builtin_ia32_pmuludq256(reinterpret_cast<Halves>(a), reinterpret_cast<Halves>(b)));
  }
};
struct MultiplyByAvx512 {
  __attribute__((target("arch=x86-64-v4"))) void operator()(const Lanes8& a, const Lanes8& b, Lanes8& product) const {
    using Halves [[gnu::vector_size(64)]] = int32_t;
    using Products [[gnu::vector_size(64)]] = long long;
    product = reinterpret_cast<Lanes8>(__builtin_ia32_pmuludq512_mask(
        reinterpret_cast<Halves>(a), reinterpret_cast<Halves>(b), Products{}, /*mask=*/0xff));
  }
};
#endif

/// Writes the bits of kN * kLanes blocks. kN is a constant, so that the words stay in registers.
template <class Lanes, int kN, class Multiplier>
void write_blocks(uint64_t seed, const uint64_t* blocks, uint64_t* bits, const Multiplier& multiply) {
  constexpr uint64_t kLowerHalf = 0xffffffff;
  const Lanes factor_a = Lanes{} + 0xd2511f53, factor_b = Lanes{} + 0xcd9e8d57;
  Lanes words[4][kN];
  for (int i = 0; i < kN; ++i) {
    words[0][i] = words[1][i] = Lanes{};
    std::memcpy(&words[2][i], blocks + kLanes<Lanes> * i, sizeof(Lanes));
    words[3][i] = words[2][i] >> 32;
  }
  auto key_low = static_cast<uint32_t>(seed), key_high = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < kN; ++i) {
      Lanes a, b;
      multiply(words[0][i], factor_a, a);
      multiply(words[2][i], factor_b, b);
      words[0][i] = b >> 32 ^ words[1][i] ^ uint64_t { key_low };
      words[1][i] = b;
      words[2][i] = a >> 32 ^ words[3][i] ^ uint64_t { key_high };
      words[3][i] = a;
    }
    key_low += 0x9e3779b9;
    key_high += 0xbb67ae85;
  }
  for (int i = 0; i < kN; ++i) {  // each block's first element, then its second
    const Lanes first = (words[0][i] & kLowerHalf) | words[1][i] << 32;
    const Lanes second = (words[2][i] & kLowerHalf) | words[3][i] << 32;
    Lanes low, high;
    if constexpr (kLanes<Lanes> == 4) {
      low = __builtin_shufflevector(first, second, 0, 4, 1, 5);
      high = __builtin_shufflevector(first, second, 2, 6, 3, 7);
    } else {
      low = __builtin_shufflevector(first, second, 0, 8, 1, 9, 2, 10, 3, 11);
      high = __builtin_shufflevector(first, second, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    uint64_t* const pairs = bits + 2 * kLanes<Lanes> * i;
    std::memcpy(pairs, &low, sizeof low);
    std::memcpy(pairs + kLanes<Lanes>, &high, sizeof high);
  }
}

/// Writes the bits of `n_blocks` blocks, a multiple of kBlocksAtOnce.
template <class Lanes, class Multiplier>
void write_bits(uint64_t seed, const uint64_t* blocks, int64_t n_blocks, uint64_t* bits, const Multiplier& multiply) {
  const auto write = [&]<int kN>(std::integral_constant<int, kN>) {
    constexpr int64_t kWritten = kN * kLanes<Lanes>;
    for (; n_blocks >= kWritten; n_blocks -= kWritten, blocks += kWritten, bits += 2 * kWritten)
      write_blocks<Lanes, kN>(seed, blocks, bits, multiply);
  };
  write(std::integral_constant<int, 4>{});  // fills the registers
  write(std::integral_constant<int, 1>{});
}

}  // namespace shardwise
