#include "runtime/numbers/draw.h"

#include "runtime/numbers/distributions.h"
#include "runtime/numbers/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

namespace shardwise {
namespace {

constexpr uint64_t kSeed = 0x0123456789abcdef;
constexpr int64_t kMany = 20'000;

const Distribution kDistributions[] = {Uniform{-1, 2}, Normal{1, 2, -1},  LogNormal{0.1, 0.5},
                                       Exponential{2}, Geometric{0.3},    Cauchy{1, 2},
                                       Bernoulli{0.3}, Integers{-3, 100}, Integers{0, 1024}};
const Stored kStoredForms[] = {Stored::kFloat, Stored::kDouble, Stored::kBFloat16, Stored::kHalf,
                               Stored::k8Bits, Stored::k16Bits, Stored::k32Bits,   Stored::k64Bits};

using Memory = std::vector<char>;

/// The elements [0, n), drawn in runs of at most `run` elements.
Memory drawn(const Distribution& distribution, Stored stored, int64_t n, int64_t run, uint64_t seed = kSeed) {
  Memory memory(n * sizeof(double));
  Draw draw(distribution, seed, stored, memory.data());
  for (int64_t first = 0; first < n; first += run) draw.add(static_cast<uint64_t>(first), std::min(run, n - first));
  draw.finish();
  return memory;
}

template <class T>
std::vector<T> elements(const Distribution& distribution, Stored stored, int64_t n, uint64_t seed = kSeed) {
  const Memory memory = drawn(distribution, stored, n, n, seed);
  std::vector<T> typed(n);
  std::memcpy(typed.data(), memory.data(), n * sizeof(T));
  return typed;
}

template <class Multiplier>
Memory drawn_by(const Distribution& distribution, Stored stored, int64_t n, const Multiplier& multiply) {
  std::vector<uint64_t> blocks(n / 2), words(n);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  write_bits<Lanes4>(kSeed, blocks.data(), n / 2, words.data(), multiply);
  Memory memory(n * sizeof(double));
  with_elements(stored, memory.data(), [&]<class T>(T* typed) {
    std::visit([&](const auto& each) { to_numbers(each, kDigits<T>, Words{words.data(), n}); }, distribution);
    to_elements(distribution, words.data(), n, typed);
  });
  return memory;
}

void expect_same_bits(Memory (*draw)(const Distribution&, Stored, int64_t)) {
  for (const Distribution& distribution : kDistributions)
    for (const Stored stored : kStoredForms)
      EXPECT_EQ(draw(distribution, stored, kMany), drawn(distribution, stored, kMany, kMany))
          << distribution.index() << " as " << static_cast<int>(stored);
}

Memory drawn_by_baseline(const Distribution& distribution, Stored stored, int64_t n) {
  return drawn_by(distribution, stored, n, Multiply{});
}

TEST(DrawTest, NumbersHaveTheSameBitsOnOldCpus) { expect_same_bits(&drawn_by_baseline); }

#ifdef SHARDWISE_AVX2
SHARDWISE_AVX2 Memory drawn_by_avx2(const Distribution& distribution, Stored stored, int64_t n) {
  return drawn_by(distribution, stored, n, MultiplyByAvx2{});
}

TEST(DrawTest, NumbersHaveTheSameBitsOnCpusWithAvx2) {
  if (__builtin_cpu_supports("avx2") == 0) GTEST_SKIP() << "this CPU has no AVX2";
  expect_same_bits(&drawn_by_avx2);
}
#endif

TEST(DrawTest, BitsAreThoseOfPhilox) {
  // Philox-4x32-10 of counter 0 and key 0, from the known answers of Random123
  const auto bits = elements<uint64_t>(Integers{0, 0}, Stored::k64Bits, 2, 0);
  EXPECT_EQ(bits[0], 0xe169c58d'6627e8d5);
  EXPECT_EQ(bits[1], 0x9b00dbd8'bc57ac4c);
}

TEST(DrawTest, NumbersOfASeedStayTheSame) {
  // Other values would change every seeded program.
  EXPECT_EQ(elements<float>(Uniform{}, Stored::kFloat, 3, 7),
            (std::vector<float>{0x1.8013f2p-1F, 0x1.5edacp-4F, 0x1.5fb6c8p-3F}));
  EXPECT_EQ(elements<float>(Normal{}, Stored::kFloat, 3, 7),
            (std::vector<float>{0x1.6e164cp+0F, 0x1.b51ap-1F, 0x1.84be5cp-4F}));
}

TEST(DrawTest, RunsOfAnyLengthGiveTheSameNumbers) {
  for (const Distribution& distribution : kDistributions)
    for (const int64_t run : {1, 2, 3, 7, 511, 513, 2049})
      EXPECT_EQ(drawn(distribution, Stored::kFloat, 3001, run), drawn(distribution, Stored::kFloat, 3001, 3001))
          << distribution.index() << " in runs of " << run;
}

TEST(DrawTest, IntegersAreRemainders) {
  const auto bits = elements<uint64_t>(Integers{0, 0}, Stored::k64Bits, kMany);
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  for (const uint64_t n :
       {uint64_t{1}, uint64_t{3}, uint64_t{1} << 32, (uint64_t{1} << 53) + 1, kHalf - 1, kHalf + 1, ~uint64_t{0}}) {
    const auto rests = elements<uint64_t>(Integers{5, n}, Stored::k64Bits, kMany);
    for (int64_t i = 0; i < kMany; ++i) ASSERT_EQ(rests[i], 5 + bits[i] % n) << bits[i] << " % " << n;
  }
}

TEST(DrawTest, NormalsAreAccurate) {
  constexpr uint64_t kAll = ~uint64_t{0};
  std::vector<uint64_t> bits = elements<uint64_t>(Integers{0, 0}, Stored::k64Bits, kMany);
  for (const uint64_t extreme : {uint64_t{0}, uint64_t{1} << 11, kAll, kAll >> 1, uint64_t{1} << 61, uint64_t{3} << 62})
    bits.insert(bits.end(), {extreme, bits[0], bits[1], extreme});
  for (size_t i = 0; i < bits.size(); i += 2) {
    const long double radius = std::sqrt(-2 * std::log1p(-static_cast<long double>(fraction(bits[i]))));
    const long double angle = 2 * std::numbers::pi_v<long double> * fraction(bits[i + 1]);
    const auto [first, second] = normals_of(bits[i], bits[i + 1]);
    EXPECT_NEAR(first, radius * std::cos(angle), 1e-15 * std::abs(first) + 1e-18) << bits[i] << " " << bits[i + 1];
    EXPECT_NEAR(second, radius * std::sin(angle), 1e-15 * std::abs(second) + 1e-18) << bits[i] << " " << bits[i + 1];
  }
}

TEST(DrawTest, UniformNumbersStayBelowTheEnd) {
  for (const float number : elements<float>(Uniform{1e6, 1e6 + 1}, Stored::kFloat, kMany)) {
    EXPECT_GE(number, 1e6F);
    EXPECT_LT(number, 1e6F + 1);
  }
  for (const Half number : elements<Half>(Uniform{1000, 1001}, Stored::kHalf, kMany)) {
    EXPECT_GE(static_cast<float>(number), 1000);
    EXPECT_LT(static_cast<float>(number), 1001);
  }
}

}  // namespace
}  // namespace shardwise
