// runtime/api/philox.h: random bits by global element index, for the pieces of a tensor; plain tensors, no messages.
//
// Element i of a draw is a function of the draw's seed and of i alone. Philox (Salmon et al., Parallel random numbers: as easy
// as 1, 2, 3, 2011) computes any place of its sequence at once.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <numbers>

namespace shardwise {

/// 64 random bits for each of two elements.
using BitsOfPair = std::array<uint64_t, 2>;

/// The highest `digits` of the bits, 63 at most, as a fraction in [0, 1).
inline double fraction(uint64_t bits, int digits) {
  return static_cast<double>(bits >> (64 - digits)) / static_cast<double>(uint64_t{1} << digits);  // exact
}

/// Two normal numbers from two uniform ones (Box and Muller, A note on the generation of random normal deviates, 1958).
inline std::array<double, 2> normals_of(const BitsOfPair& bits) {
  const double radius = std::sqrt(-2 * std::log1p(-fraction(bits[0], 53)));
  const double angle = 2 * std::numbers::pi * fraction(bits[1], 53);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Turns `number(bits)` into a function of a pair's bits that returns the numbers of both elements.
template <typename Number>
auto each_of_pair(Number number) {
  return [number](const BitsOfPair& bits) { return std::array{number(bits[0]), number(bits[1])}; };
}

/// A sequence of random numbers for one element, as long as needed.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t index) : engine_(seed, /*subsequence=*/index) {}

  uint64_t bits() {
    const uint64_t low = engine_();
    return low | static_cast<uint64_t>(engine_()) << 32;
  }
  double uniform() { return fraction(bits(), 53); }
  double normal() {
    const uint64_t first = bits();
    return normals_of({first, bits()})[0];
  }

 private:
  at::Philox4_32 engine_;
};

/// The bits of the elements 2 `block` and 2 `block` + 1.
inline BitsOfPair bits_of_pair(uint64_t seed, uint64_t block) {
  RandomStream stream(seed, block);
  const uint64_t first = stream.bits();
  return {first, stream.bits()};
}

/// Calls `on_run(first global index, place in the box, length)` for each run of the box along the last dim, row by row.
template <typename OnRun>
void each_run(c10::IntArrayRef sizes, const Box& box, const OnRun& on_run) {
  if (box.empty()) return;
  const Dims strides = row_major_strides(sizes);
  const size_t n_outer = sizes.empty() ? 0 : sizes.size() - 1;
  const int64_t run = sizes.empty() ? 1 : box.sizes.back();
  for (int64_t row = 0; row < box.numel() / run; ++row) {
    int64_t rest = row;
    int64_t index = sizes.empty() ? 0 : box.offsets.back();
    for (size_t dim = n_outer; dim-- > 0; rest /= box.sizes[dim])
      index += (box.offsets[dim] + rest % box.sizes[dim]) * strides[dim];
    on_run(static_cast<uint64_t>(index), row * run, run);
  }
}

/// Fills `piece`, the part `box` of a tensor of `sizes`. `numbers(bits of a pair)` returns the values of both elements.
template <typename Value, typename Numbers>
void fill_box(const at::Tensor& piece, c10::IntArrayRef sizes, const Box& box, uint64_t seed, const Numbers& numbers) {
  const bool in_place = piece.is_cpu() && piece.is_contiguous();
  const at::Tensor values = in_place ? piece : at::empty(box.sizes, piece.options().device(at::kCPU));
  auto* const data = values.mutable_data_ptr<Value>();
  each_run(sizes, box, [&](uint64_t first, int64_t place, int64_t length) {
    decltype(numbers(BitsOfPair{})) pair{};
    for (uint64_t i = first; i < first + static_cast<uint64_t>(length); ++i) {
      if (i == first || i % 2 == 0) pair = numbers(bits_of_pair(seed, i / 2));
      data[place++] = static_cast<Value>(pair[i % 2]);
    }
  });
  if (!in_place) piece.copy_(values);
}

}  // namespace shardwise
