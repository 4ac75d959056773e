// kernels/stochastic_rounding.h: rounds float32 numbers up or down to bfloat16 or float16. The probability of each depends on the distance,
// so that the mean of many roundings is the number itself.
//
// The random bits come from a counter-based generator, Philox-4x32-10 (Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1,
// 2, 3, 2011). They depend on the seed, the step, and the element's row and column in its table, not on the rank that rounds it.
#pragma once

#include "kernels/rows.h"

#include <cmath>
#include <cstring>

namespace shardwise::kernels {

/// Settings for the rounding of updates to 16-bit tables.
struct StochasticRounding {
  bool is_on = false;  // else rounds to nearest
  uint64_t seed = 0;
  uint32_t step = 0;
  int64_t first_row = 0;  // of the piece in its table
  int64_t first_column = 0;
};

/// 16 random bits for each of the columns [8 n, 8 n + 8) of a row.
struct RandomBits {
  static constexpr int64_t kColumns = 8;
  uint32_t words[4];

  SHARDWISE_ANYWHERE uint32_t of(int64_t column) const {
    const auto place = static_cast<uint64_t>(column) % kColumns;
    return words[place / 2] >> (place % 2 * 16) & 0xffff;
  }
};

SHARDWISE_ANYWHERE inline RandomBits random_bits(const StochasticRounding& rounding, int64_t row, int64_t column) {
  RandomBits bits{{static_cast<uint32_t>(row), static_cast<uint32_t>(static_cast<uint64_t>(row) >> 32),
                   static_cast<uint32_t>(column / RandomBits::kColumns), rounding.step}};
  auto key0 = static_cast<uint32_t>(rounding.seed), key1 = static_cast<uint32_t>(rounding.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * bits.words[0], b = uint64_t{0xcd9e8d57} * bits.words[2];
    bits = {{static_cast<uint32_t>(b >> 32) ^ bits.words[1] ^ key0, static_cast<uint32_t>(b),
             static_cast<uint32_t>(a >> 32) ^ bits.words[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  return bits;
}

SHARDWISE_ANYWHERE inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
SHARDWISE_ANYWHERE inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// `value` rounded to one of the two nearest bfloat16 numbers, by 16 random bits. A number that is not finite, or would become infinite, is
/// returned unchanged, so that the caller rounds it to nearest.
SHARDWISE_ANYWHERE inline float rounded_to_bfloat16(float value, uint32_t random) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const uint32_t bits = bits_of(value), rounded = (bits + random) & 0xffff0000;
  return (bits & kInfinity) == kInfinity || (rounded & kInfinity) == kInfinity ? value : float_of(rounded);
}

/// The same for float16, including its subnormal numbers, which are multiples of 2^-24.
SHARDWISE_ANYWHERE inline float rounded_to_half(float value, uint32_t random) {
  constexpr float kLeastNormal = 6.103515625e-5f, kLargest = 65504;
  const float size = std::fabs(value);
  if (!(size <= kLargest)) return value;
  if (size >= kLeastNormal) {
    const float rounded = float_of((bits_of(value) + (random >> 3)) & ~uint32_t{0x1fff});
    return std::fabs(rounded) > kLargest ? value : rounded;
  }
  constexpr float kPerUnit = 16777216;
  const float units = size * kPerUnit, below = std::floor(units);
  const bool goes_up = (units - below) * 65536 + static_cast<float>(random) >= 65536;  // never if it is exact
  return std::copysign((goes_up ? below + 1 : below) / kPerUnit, value);
}

}  // namespace shardwise::kernels
