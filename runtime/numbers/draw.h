// runtime/numbers/draw.h: random numbers of distributions, by element index, into raw memory.
//
// Element i of a draw is a function of the draw's seed and of i alone. It has the same bits on every CPU, except that log-normal, Cauchy and
// geometric numbers take functions of the C library.
//
//     Draw draw(Normal{}, seed, Stored::kFloat, memory);
//     draw.add(0, 4);   // elements 0 to 3 go to memory[0..4),
//     draw.add(10, 4);  // elements 10 to 13 to memory[4..8)
//     draw.finish();
#pragma once

#include <cstdint>
#include <variant>

namespace shardwise {

/// How an element is stored. Integers and bools differ by their size only.
enum class Stored : uint8_t { kFloat, kDouble, kBFloat16, kHalf, k8Bits, k16Bits, k32Bits, k64Bits };

/// Uniform in [from, to), with as many random digits as an element's mantissa has.
struct Uniform {
  double from = 0, to = 1;
};
/// Elements with an odd index have the mean `odd_mean`.
struct Normal {
  double mean = 0, deviation = 1, odd_mean = 0;
};
struct LogNormal {
  double mean, deviation;
};
/// Never 0 as a double, so that division by the number is finite. A 16-bit element may round to 0.
struct Exponential {
  double rate;
};
/// The number of trials up to the first success; at least 1.
struct Geometric {
  double p;
};
struct Cauchy {
  double median, sigma;
};
/// 1 with probability `p`, else 0.
struct Bernoulli {
  double p;
};
/// In [from, from + n); n = 0 stands for 2^64.
struct Integers {
  int64_t from;
  uint64_t n;
};
using Distribution = std::variant<Uniform, Normal, LogNormal, Exponential, Geometric, Cauchy, Bernoulli, Integers>;

/// Writes elements of a draw one after the other, from `elements` on.
class Draw {
 public:
  Draw(Distribution distribution, uint64_t seed, Stored stored, void* elements);

  /// Appends the elements [first, first + n) of the draw. They are written by finish() at the latest.
  void add(uint64_t first, int64_t n);
  void finish();

 private:
  static constexpr int64_t kBlocks = 256;  // the cache of the first level holds their words
  struct Part {
    int64_t place, n;
  };
  Distribution distribution_;
  uint64_t seed_;
  Stored stored_;
  void* elements_;
  int n_digits_;  // of an element
  int64_t n_blocks_ = 0, n_parts_ = 0;
  Part parts_[kBlocks];       // of words_ that were added
  uint64_t blocks_[kBlocks];  // pairs of elements with added ones
  alignas(64) uint64_t words_[2 * kBlocks];
};

}  // namespace shardwise
