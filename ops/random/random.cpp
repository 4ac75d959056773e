// ops/random/random.cpp: random numbers drawn in place, and new random tensors like another tensor.
//
// Element i is a function of the draw's seed and of i alone, so the tensor is the same on any mesh and in any layout.
#include "ops/families.h"
#include "ops/random/random_fill.h"
#include "ops/support/kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/native/DistributionTemplates.h>

#include <limits>
#include <numbers>

namespace shardwise {
namespace {

at::Tensor& uniform_(at::Tensor& self, double from, double to, MaybeGenerator generator) {
  return draw_into(self, generator, Uniform{from, to},
                   [=](at::Tensor& one, const at::Generator& scratch) { one.uniform_(from, to, scratch); });
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, MaybeGenerator generator) {
  // A complex tensor is drawn as pairs of real numbers.
  const bool is_complex = self.is_complex();
  const Normal normal{mean, is_complex ? std / std::numbers::sqrt2 : std, is_complex ? 0 : mean};
  return draw_into(self, generator, normal,
                   [=](at::Tensor& one, const at::Generator& scratch) { one.normal_(mean, std, scratch); });
}

at::Tensor& log_normal_(at::Tensor& self, double mean, double std, MaybeGenerator generator) {
  return draw_into(self, generator, LogNormal{mean, std},
                   [=](at::Tensor& one, const at::Generator& scratch) { one.log_normal_(mean, std, scratch); });
}

at::Tensor& exponential_(at::Tensor& self, double lambd, MaybeGenerator generator) {
  return draw_into(self, generator, Exponential{lambd},
                   [=](at::Tensor& one, const at::Generator& scratch) { one.exponential_(lambd, scratch); });
}

at::Tensor& geometric_(at::Tensor& self, double p, MaybeGenerator generator) {
  return draw_into(self, generator, Geometric{p},
                   [=](at::Tensor& one, const at::Generator& scratch) { one.geometric_(p, scratch); });
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, MaybeGenerator generator) {
  return draw_into(self, generator, Cauchy{median, sigma},
                   [=](at::Tensor& one, const at::Generator& scratch) { one.cauchy_(median, sigma, scratch); });
}

at::Tensor& bernoulli_float_(at::Tensor& self, double p, MaybeGenerator generator) {
  return draw_into(self, generator, Bernoulli{p},
                   [=](at::Tensor& one, const at::Generator& scratch) { one.bernoulli_(p, scratch); });
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

at::Tensor& random_(at::Tensor& self, MaybeGenerator generator) {
  return draw_into(self, generator, Integers{0, n_integers(self.scalar_type())},
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
  return draw_into(self, generator, Integers{first, n},
                   [=](at::Tensor& one, const at::Generator& scratch) { one.random_(from, to, scratch); });
}

at::Tensor& random_to_(at::Tensor& self, int64_t to, MaybeGenerator generator) {
  return random_from_(self, 0, to, std::move(generator));
}

}  // namespace

void register_random(RuleTable& table) {
  table.keep_symbols({"aten::uniform_", "aten::normal_", "aten::log_normal_", "aten::exponential_", "aten::geometric_",
                      "aten::cauchy_", "aten::bernoulli_.float", "aten::random_", "aten::random_.from",
                      "aten::random_.to"});
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
