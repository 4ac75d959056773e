// ops/random/random.cpp: random numbers drawn in place, and new random tensors like another tensor.
//
// Element i is a function of the draw's seed and of i alone, so the tensor is the same on any mesh and in any layout.
#include "ops/families.h"
#include "ops/random/random_fill.h"
#include "ops/support/kernels.h"
#include "runtime/api/philox.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <limits>
#include <numbers>

namespace shardwise {
namespace {

using MaybeGenerator = std::optional<at::Generator>;

/// `number(u)` for u uniform in [0, 1), for any dtype.
template <class Number>
FillPiece of_uniform(const Number& number) {
  return [=](const at::Tensor& piece, c10::IntArrayRef sizes, const Box& box, uint64_t seed) {
    AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, piece.scalar_type(), "draw", [&] {
      fill_box<scalar_t>(piece, sizes, box, seed,
                         each_of_pair([&](uint64_t bits) { return number(fraction(bits, 53)); }));
    });
  };
}

/// Fills a complex tensor as pairs of real numbers.
FillPiece in_real_pairs(const FillPiece& fill) {
  return [=](const at::Tensor& piece, c10::IntArrayRef sizes, const Box& box, uint64_t seed) {
    if (!piece.is_complex()) return fill(piece, sizes, box, seed);
    Dims pairs(sizes);
    Box of_pairs = box;
    pairs.push_back(2);
    of_pairs.offsets.push_back(0);
    of_pairs.sizes.push_back(2);
    fill(at::view_as_real(piece), pairs, of_pairs, seed);
  };
}

/// `numbers(scalar_t())` gives the function that makes two numbers of random bits, for a floating dtype.
template <class Numbers>
FillPiece of_floats(const Numbers& numbers) {
  return [=](const at::Tensor& piece, c10::IntArrayRef sizes, const Box& box, uint64_t seed) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, piece.scalar_type(), "draw",
                                    [&] { fill_box<scalar_t>(piece, sizes, box, seed, numbers(scalar_t())); });
  };
}

at::Tensor& uniform_(at::Tensor& self, double from, double to, MaybeGenerator generator) {
  const auto fill = of_floats([=]<class Number>(Number) {
    return each_of_pair([=](uint64_t bits) {
      const double unit = fraction(bits, std::numeric_limits<Number>::digits);
      const auto number = static_cast<Number>(from + unit * (to - from));
      return number == static_cast<Number>(to) ? static_cast<Number>(from) : number;  // rounded up
    });
  });
  return draw_into(self, generator, in_real_pairs(fill),
                   [=](at::Tensor& one, const at::Generator& scratch) { one.uniform_(from, to, scratch); });
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, MaybeGenerator generator) {
  const bool is_complex = self.is_complex();
  const double scale = is_complex ? std / std::numbers::sqrt2 : std, second_mean = is_complex ? 0 : mean;
  const auto fill = of_floats([=](auto) {
    return [=](const BitsOfPair& bits) {
      const std::array<double, 2> normals = normals_of(bits);
      return std::array{mean + scale * normals[0], second_mean + scale * normals[1]};
    };
  });
  return draw_into(self, generator, in_real_pairs(fill),
                   [=](at::Tensor& one, const at::Generator& scratch) { one.normal_(mean, std, scratch); });
}

at::Tensor& log_normal_(at::Tensor& self, double mean, double std, MaybeGenerator generator) {
  const auto fill = of_floats([=](auto) {
    return [=](const BitsOfPair& bits) {
      const std::array<double, 2> normals = normals_of(bits);
      return std::array{std::exp(mean + std * normals[0]), std::exp(mean + std * normals[1])};
    };
  });
  return draw_into(self, generator, fill,
                   [=](at::Tensor& one, const at::Generator& scratch) { one.log_normal_(mean, std, scratch); });
}

at::Tensor& exponential_(at::Tensor& self, double lambd, MaybeGenerator generator) {
  // Never 0, so that division by the number is finite.
  const auto number = [=](double unit) { return std::max(-std::log1p(-unit), 0x1p-54) / lambd; };
  return draw_into(self, generator, of_uniform(number),
                   [=](at::Tensor& one, const at::Generator& scratch) { one.exponential_(lambd, scratch); });
}

at::Tensor& geometric_(at::Tensor& self, double p, MaybeGenerator generator) {
  const auto number = [=](double unit) { return std::max(std::ceil(std::log1p(-unit) / std::log1p(-p)), 1.0); };
  return draw_into(self, generator, of_uniform(number),
                   [=](at::Tensor& one, const at::Generator& scratch) { one.geometric_(p, scratch); });
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, MaybeGenerator generator) {
  const auto number = [=](double unit) { return median + sigma * std::tan(std::numbers::pi * (unit - 0.5)); };
  return draw_into(self, generator, of_uniform(number),
                   [=](at::Tensor& one, const at::Generator& scratch) { one.cauchy_(median, sigma, scratch); });
}

at::Tensor& bernoulli_float_(at::Tensor& self, double p, MaybeGenerator generator) {
  const auto number = [=](double unit) { return unit < p; };
  return draw_into(self, generator, of_uniform(number),
                   [=](at::Tensor& one, const at::Generator& scratch) { one.bernoulli_(p, scratch); });
}

/// `number(bits)`, an integer, for 64 random bits.
template <class Number>
FillPiece of_bits(const Number& number) {
  return [=](const at::Tensor& piece, c10::IntArrayRef sizes, const Box& box, uint64_t seed) {
    AT_DISPATCH_V2(
        piece.scalar_type(), "random_", AT_WRAP([&] {
          fill_box<scalar_t>(piece, sizes, box, seed, each_of_pair([&](uint64_t bits) { return number(bits); }));
        }),
        AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
  };
}

/// The number of consecutive integers from 0 on that `dtype` represents exactly; 0 stands for 2^64.
uint64_t n_integers(at::ScalarType dtype) {
  if (dtype == at::kBool) return 2;
  if (dtype == at::kUInt64) return 0;
  uint64_t n = 0;
  AT_DISPATCH_V2(dtype, "random_", AT_WRAP([&] {
                   n = uint64_t{1} << std::numeric_limits<scalar_t>::digits;
                   if (!std::numeric_limits<scalar_t>::is_integer) ++n;
                 }),
                 AT_EXPAND(AT_ALL_TYPES), at::kUInt16, at::kUInt32, at::kHalf, at::kBFloat16);
  return n;
}

/// Uniform in [from, from + n); n = 0 stands for 2^64.
FillPiece integers_from(int64_t from, uint64_t n) {
  return of_bits(
      [=](uint64_t bits) { return static_cast<int64_t>(static_cast<uint64_t>(from) + (n == 0 ? bits : bits % n)); });
}

at::Tensor& random_(at::Tensor& self, MaybeGenerator generator) {
  return draw_into(self, generator, integers_from(0, n_integers(self.scalar_type())),
                   [](at::Tensor& one, const at::Generator& scratch) { one.random_(scratch); });
}

/// Moves the bounds to numbers that `dtype` represents, as torch does. Other bounds would be rounded, and draws could be outside of [from, to).
void move_bounds(at::ScalarType dtype, int64_t& from, std::optional<int64_t>& to) {
  if (!c10::isFloatingType(dtype)) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "random_", [&] {
    from = at::native::templates::update_from<scalar_t>(from);
    if (to) to = at::native::templates::update_to<scalar_t>(*to);
  });
}

at::Tensor& random_from_(at::Tensor& self, int64_t from, std::optional<int64_t> to, MaybeGenerator generator) {
  int64_t first = from;
  std::optional<int64_t> end = to;
  uint64_t n = 0;
  if (to || from != std::numeric_limits<int64_t>::lowest()) {
    move_bounds(self.scalar_type(), first, end);
    n = (end ? static_cast<uint64_t>(*end) : n_integers(self.scalar_type())) - static_cast<uint64_t>(first);
  }
  return draw_into(self, generator, integers_from(first, n),
                   [=](at::Tensor& one, const at::Generator& scratch) { one.random_(from, to, scratch); });
}

at::Tensor& random_to_(at::Tensor& self, int64_t to, MaybeGenerator generator) {
  return random_from_(self, 0, to, std::move(generator));
}

}  // namespace

void register_random(RuleTable& /*table*/) {
  auto& kernels = aten_kernels();
  kernels.impl("uniform_", &uniform_);
  kernels.impl("normal_", &normal_);
  kernels.impl("log_normal_", &log_normal_);
  kernels.impl("exponential_", &exponential_);
  kernels.impl("geometric_", &geometric_);
  kernels.impl("cauchy_", &cauchy_);
  kernels.impl("bernoulli_.float", &bernoulli_float_);
  kernels.impl("random_", &random_);
  kernels.impl("random_.from", &random_from_);
  kernels.impl("random_.to", &random_to_);
  add_torch_compositions({"uniform", "normal_functional", "log_normal", "exponential", "geometric", "cauchy",
                          "bernoulli.p", "random", "random.from", "random.to"});
  add_torch_compositions({"rand_like", "rand_like.generator", "randn_like", "randn_like.generator", "randint_like",
                          "randint_like.generator", "randint_like.low_dtype", "randint_like.low_generator_dtype",
                          "randint_like.Tensor", "randint_like.Tensor_generator"});
}

}  // namespace shardwise
