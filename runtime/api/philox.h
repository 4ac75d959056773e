// runtime/api/philox.h: random numbers by global element index, for the pieces of a tensor; plain tensors, no messages.
//
// Element i of a draw is a function of the draw's seed and of i alone. Philox (Salmon et al., Parallel random numbers: as easy
// as 1, 2, 3, 2011) computes any place of its sequence at once.
#pragma once

#include "runtime/numbers/draw.h"
#include "runtime/numbers/random_math.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>

namespace shardwise {

/// A sequence of random numbers for one element, as long as needed.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t index) : engine_(seed, /*subsequence=*/index) {}

  uint64_t bits() {
    const uint64_t low = engine_();
    return low | static_cast<uint64_t>(engine_()) << 32;
  }
  double uniform() { return fraction(bits()); }
  double normal() {
    const uint64_t first = bits();
    return normals_of(first, bits())[0];
  }

 private:
  at::Philox4_32 engine_;
};

/// Calls `on_run(first global index, place in the box, length)` for each run of the box: rows along a dim, and all elements of later dims.
template <typename OnRun>
void each_run(c10::IntArrayRef sizes, const Box& box, const OnRun& on_run) {
  if (box.empty()) return;
  const Dims strides = row_major_strides(sizes);
  size_t n_outer = sizes.size();
  int64_t run = 1, first = 0;
  while (n_outer > 0 && run == (n_outer < sizes.size() ? strides[n_outer - 1] : 1)) {
    --n_outer;
    run *= box.sizes[n_outer];
    first += box.offsets[n_outer] * strides[n_outer];
  }
  for (int64_t row = 0; row < box.numel() / run; ++row) {
    int64_t rest = row, index = first;
    for (size_t dim = n_outer; dim-- > 0; rest /= box.sizes[dim])
      index += (box.offsets[dim] + rest % box.sizes[dim]) * strides[dim];
    on_run(static_cast<uint64_t>(index), row * run, run);
  }
}

/// Fills this rank's pieces. Complex numbers are drawn as pairs of real ones.
void fill_pieces(const DTensorImpl& tensor, uint64_t seed, const Distribution& distribution);

}  // namespace shardwise
