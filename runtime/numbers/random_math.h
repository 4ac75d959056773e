// runtime/numbers/random_math.h: fractions, logarithms and normal numbers of random bits.
//
// The functions have no branches, so that loops over elements become vector code. They give the same bits on every CPU where they are compiled
// without fused products and sums, as the sources of this folder are. The polynomials are those of fdlibm (Sun Microsystems, 1993). Normal
// numbers above 0.001 have a relative error below 1e-15.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace shardwise {

inline constexpr uint64_t kBitsOfOne = 0x3ff0000000000000, kBitsOfHalf = 0x3fe0000000000000;
/// The bits of 2^52. Its last places are integers.
inline constexpr uint64_t kBitsOf2To52 = 0x4330000000000000;

/// The highest 53 bits as a fraction in [0, 1).
inline double fraction(uint64_t bits) {
  const auto high = std::bit_cast<double>(bits >> 12 | kBitsOfOne);         // 1, and 52 digits
  const auto last = std::bit_cast<double>((bits >> 11 & 1) | kBitsOfHalf);  // 1/2, and the digit with the place 2^-53
  return high - 1.5 + last;                                                 // exact
}

/// The natural logarithm of a positive normal number.
inline double logarithm(double x) {
  constexpr uint64_t kBitsOfRootOfHalf = 0x3fe6a09e667f3bcd;
  // x = 2^(exponent - 1023) (1 + f), with 1 + f between the roots of 1/2 and 2
  const auto bits = std::bit_cast<uint64_t>(x);
  const uint64_t exponent = (bits + (kBitsOfOne - kBitsOfRootOfHalf)) >> 52;
  const double f = std::bit_cast<double>(bits - (exponent << 52) + kBitsOfOne) - 1;
  const double k = std::bit_cast<double>(exponent | kBitsOf2To52) - (0x1p52 + 1023);
  const double s = f / (2 + f), z = s * s, w = z * z, half_square = 0.5 * f * f;
  const double odd = w * (0x1.999999997fa04p-2 + w * (0x1.c71c51d8e78afp-3 + w * 0x1.39a09d078c69fp-3));
  const double even =
      z * (0x1.5555555555593p-1 + w * (0x1.2492494229359p-2 + w * (0x1.7466496cb03dep-3 + w * 0x1.2f112df3e5244p-3)));
  return k * std::numbers::ln2 - (half_square - s * (half_square + (odd + even)) - f);
}

struct SineAndCosine {
  double sine, cosine;
};

/// Sine and cosine of the angle whose fraction of a full turn is fraction(bits).
inline SineAndCosine sine_and_cosine(uint64_t bits) {
  constexpr uint64_t kSign = uint64_t{1} << 63, kRest = (uint64_t{1} << 51) - 1;
  // The angle, turned on by an eighth, is a number of quarter turns in the two highest bits, and a rest, of 51 bits.
  const uint64_t turned = bits + (uint64_t{1} << 61);
  const double rest = std::bit_cast<double>((turned >> 11 & kRest) | kBitsOf2To52) - (0x1p52 + 0x1p50);
  const double x = rest * (std::numbers::pi / 2 * 0x1p-51);  // from -pi / 4 to pi / 4
  const double z = x * x, half = 0.5 * z, w = 1 - half;
  const double zz = z * z;
  const double sine_terms = -0x1.5555555555549p-3 + z * 0x1.111111110f8a6p-7 +
                            zz * (-0x1.a01a019c161d5p-13 + z * 0x1.71de357b1fe7dp-19 +
                                  zz * (-0x1.ae5e68a2b9cebp-26 + z * 0x1.5d93a5acfd57cp-33));
  const double cosine_terms = 0x1.555555555554cp-5 + z * -0x1.6c16c16c15177p-10 +
                              zz * (0x1.a01a019cb159p-16 + z * -0x1.27e4f809c52adp-22 +
                                    zz * (0x1.1ee9ebdb4b1c4p-29 + z * -0x1.8fae9be8838d4p-37));
  const auto sine = std::bit_cast<uint64_t>(x + x * (z * sine_terms));
  const auto cosine = std::bit_cast<uint64_t>(w + (1 - w - half + z * (z * cosine_terms)));
  const uint64_t exchanged = (sine ^ cosine) & (0 - (turned >> 62 & 1));  // after an odd number of quarters
  return {std::bit_cast<double>(sine ^ exchanged ^ (turned & kSign)),
          std::bit_cast<double>(cosine ^ exchanged ^ ((turned + (uint64_t{1} << 62)) & kSign))};
}

/// Two normal numbers of the bits of two elements (Box and Muller, A note on the generation of random normal deviates, 1958).
inline std::array<double, 2> normals_of(uint64_t first, uint64_t second) {
  const double radius = std::sqrt(-2 * logarithm(1 - fraction(first)));
  const auto [sine, cosine] = sine_and_cosine(second);
  return {radius * cosine, radius * sine};
}

}  // namespace shardwise
