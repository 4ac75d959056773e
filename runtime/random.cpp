#include "runtime/random.h"

#include "runtime/below.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace shardwise {
namespace {

/// 64 random bits for each of the two elements 2 `block` and 2 `block` + 1.
std::array<uint64_t, 2> bits_of(uint64_t seed, uint64_t block) {
  at::Philox4_32 engine(seed, /*subsequence=*/block);
  const auto word = [&engine] {
    const uint64_t low = engine();
    return low | static_cast<uint64_t>(engine()) << 32;
  };
  const uint64_t first = word();
  return {first, word()};
}

/// The highest `digits` of the bits as a fraction in [0, 1).
double fraction(uint64_t bits, int digits) { return std::ldexp(static_cast<double>(bits >> (64 - digits)), -digits); }

struct Uniform {
  int digits;
  double operator()(const std::array<uint64_t, 2>& bits, bool is_second) const {
    return fraction(bits[is_second], digits);
  }
};

/// Two normal numbers from two uniform ones (Box and Muller, A note on the generation of random normal deviates, 1958).
struct Normal {
  double operator()(const std::array<uint64_t, 2>& bits, bool is_second) const {
    const double radius = std::sqrt(-2 * std::log1p(-fraction(bits[0], 53)));
    const double angle = 2 * std::numbers::pi * fraction(bits[1], 53);
    return radius * (is_second ? std::sin(angle) : std::cos(angle));
  }
};

/// Fills contiguous `values`, which are the elements from `first` on.
template <typename Value, typename Distribution>
void fill_run(Value* values, int64_t n_values, uint64_t first, uint64_t seed, const Distribution& distribution) {
  std::array<uint64_t, 2> bits{};
  for (uint64_t i = first; i < first + static_cast<uint64_t>(n_values); ++i) {
    if (i == first || i % 2 == 0) bits = bits_of(seed, i / 2);
    *values++ = static_cast<Value>(distribution(bits, i % 2 == 1));
  }
}

/// Calls `on_run(first global index, place in the box)` for each run of the box along the last dim, in row-major order.
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
    on_run(index, row * run, run);
  }
}

template <typename Value, typename Distribution>
void fill_box(const at::Tensor& piece, c10::IntArrayRef sizes, const Box& box, uint64_t seed,
              const Distribution& distribution) {
  const at::Tensor values = at::empty(box.sizes, piece.options().device(at::kCPU));
  auto* data = values.mutable_data_ptr<Value>();
  each_run(sizes, box, [&](int64_t index, int64_t place, int64_t length) {
    fill_run(data + place, length, index, seed, distribution);
  });
  piece.copy_(values);
}

void check_drawable(const char* op, const Placements& placements, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(std::ranges::none_of(placements, &Placement::is_partial),
                    fmt::format("[{}] cannot draw a tensor as {}. Use Shard or Replicate.", op, to_string(placements)));
  TORCH_CHECK_TYPE(c10::isFloatingType(dtype),
                   fmt::format("[{}] draws no {} numbers. Use a floating-point dtype.", op, c10::toString(dtype)));
}

/// `fill(piece, box, seed)` for each of this rank's pieces of a new tensor.
template <typename Fill>
at::Tensor drawn(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype,
                 const Fill& fill) {
  at::Tensor tensor = empty(sizes, mesh, std::move(placements), dtype);
  const uint64_t seed = next_seed();
  BelowGuard guard;
  const auto* impl = maybe_dtensor(tensor);
  for (size_t i = 0; i < impl->shards().size(); ++i) fill(impl->shards()[i], impl->spec()->boxes()[i], seed);
  return tensor;
}

}  // namespace

uint64_t next_seed() {
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  const auto draw = [](const at::Generator& generator) {
    return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  };
  const std::lock_guard lock(shared.mutex());
  if (!World::is_thread()) return draw(shared);
  thread_local at::Generator own;
  if (!own.defined() || own.current_seed() != shared.current_seed()) own = shared.clone();
  return draw(own);
}

at::Tensor rand(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype) {
  check_drawable("rand", placements, dtype);
  return drawn(sizes, mesh, std::move(placements), dtype, [&](const at::Tensor& piece, const Box& box, uint64_t seed) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "rand", [&] {
      fill_box<scalar_t>(piece, sizes, box, seed, Uniform{std::numeric_limits<scalar_t>::digits});
    });
  });
}

at::Tensor randn(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype) {
  check_drawable("randn", placements, dtype);
  return drawn(sizes, mesh, std::move(placements), dtype, [&](const at::Tensor& piece, const Box& box, uint64_t seed) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "randn",
                                    [&] { fill_box<scalar_t>(piece, sizes, box, seed, Normal{}); });
  });
}

}  // namespace shardwise
