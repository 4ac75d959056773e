#include "runtime/numbers/draw.h"

#include "runtime/numbers/distributions.h"
#include "runtime/numbers/philox.h"

#include <cstring>
#include <span>

namespace shardwise {

#ifdef SHARDWISE_AVX2
SHARDWISE_AVX512 void random_bits(uint64_t seed, const uint64_t* blocks, int64_t n_blocks, uint64_t* bits) {
  write_bits<Lanes8>(seed, blocks, n_blocks, bits, MultiplyByAvx512{});
}
SHARDWISE_AVX2 void random_bits(uint64_t seed, const uint64_t* blocks, int64_t n_blocks, uint64_t* bits) {
  write_bits<Lanes4>(seed, blocks, n_blocks, bits, MultiplyByAvx2{});
}
#endif
SHARDWISE_BASELINE void random_bits(uint64_t seed, const uint64_t* blocks, int64_t n_blocks, uint64_t* bits) {
  write_bits<Lanes4>(seed, blocks, n_blocks, bits, Multiply{});
}

SHARDWISE_WIDE_KERNEL void to_numbers(const Distribution& distribution, int n_digits, Words words) {
  std::visit([&](const auto& each) { to_numbers(each, n_digits, words); }, distribution);
}

SHARDWISE_WIDE_KERNEL void to_elements(const Distribution& distribution, const uint64_t* numbers, int64_t n,
                                       Stored stored, void* elements) {
  with_elements(stored, elements, [&](auto* typed) { to_elements(distribution, numbers, n, typed); });
}

Draw::Draw(Distribution distribution, uint64_t seed, Stored stored, void* elements)
    : distribution_(distribution), seed_(seed), stored_(stored), elements_(elements) {
  with_elements(stored, elements, [&]<class T>(T*) { n_digits_ = kDigits<T>; });
}

void Draw::add(uint64_t first, int64_t n) {
  while (n > 0) {
    if (n_blocks_ == kBlocks) finish();
    const auto skipped = static_cast<int64_t>(first % 2);
    const int64_t n_now = std::min(2 * (kBlocks - n_blocks_) - skipped, n);
    parts_[n_parts_++] = {2 * n_blocks_ + skipped, n_now};
    const uint64_t end = first + static_cast<uint64_t>(n_now);
    for (uint64_t block = first / 2; 2 * block < end; ++block) blocks_[n_blocks_++] = block;
    first = end;
    n -= n_now;
  }
}

void Draw::finish() {
  const int64_t n_drawn = (n_blocks_ + kBlocksAtOnce - 1) / kBlocksAtOnce * kBlocksAtOnce;
  std::fill(blocks_ + n_blocks_, blocks_ + n_drawn, 0);
  random_bits(seed_, blocks_, n_drawn, words_);
  to_numbers(distribution_, n_digits_, {words_, 2 * n_drawn});
  int64_t n = 0;
  for (const Part& part : std::span(parts_, n_parts_)) {
    if (part.place != n) std::memmove(words_ + n, words_ + part.place, part.n * sizeof *words_);
    n += part.n;
  }
  to_elements(distribution_, words_, n, stored_, elements_);
  with_elements(stored_, elements_, [&](auto* typed) { elements_ = typed + n; });
  n_blocks_ = n_parts_ = 0;
}

}  // namespace shardwise
