// Random operators that return a new tensor: the numbers of the in-place ones, in the layout of their argument.
#include "runtime/api/dtensor.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace shardwise::random_test {
namespace {

using MaybeGenerator = std::optional<at::Generator>;
using Draw = std::function<at::Tensor(const at::Tensor& like, const MaybeGenerator& generator)>;

MaybeGenerator seeded() { return at::detail::createCPUGenerator(7); }

TEST(RandomTest, NewTensorsHaveTheNumbersOfDrawsInPlace) {
  // name, a new tensor, in place
  const std::vector<std::tuple<const char*, Draw, Draw>> cases{
      {"uniform", [](const auto& x, const auto& g) { return at::uniform(x, 1, 3, g); },
       [](const auto& x, const auto& g) { return at::empty_like(x).uniform_(1, 3, g); }},
      {"normal", [](const auto& x, const auto& g) { return at::normal_functional(x, 1, 3, g); },
       [](const auto& x, const auto& g) { return at::empty_like(x).normal_(1, 3, g); }},
      {"exponential", [](const auto& x, const auto& g) { return at::exponential(x, 2, g); },
       [](const auto& x, const auto& g) { return at::empty_like(x).exponential_(2, g); }},
      {"random", [](const auto& x, const auto& g) { return at::random(x, 5, 9, g); },
       [](const auto& x, const auto& g) { return at::empty_like(x).random_(5, 9, g); }},
      {"bernoulli.p", [](const auto& x, const auto& g) { return at::bernoulli(x, 0.3, g); },
       [](const auto& x, const auto& g) { return at::empty_like(x).bernoulli_(0.3, g); }},
      {"bernoulli", [](const auto& x, const auto& g) { return at::bernoulli(x, g); },
       [](const auto& x, const auto& g) { return at::empty_like(x).bernoulli_(x, g); }},
  };
  for (const auto& [name, draw, draw_in_place] : cases)
    run_ranks(3, [&, &name = name, &draw = draw, &draw_in_place = draw_in_place](World&) {
      const auto mesh = make_mesh({3});
      const at::Tensor dense = at::full({5, 4}, 0.5, at::kDouble);
      for (const Placement& placement : {Placement::shard(0), Placement::shard(0, {0, 4, 1}), Placement::partial()}) {
        const at::Tensor like = lay_out(dense, mesh, {placement});
        const at::Tensor drawn = full_tensor(draw(like, seeded()));
        EXPECT_TRUE(drawn.equal(full_tensor(draw_in_place(like, seeded())))) << name << " " << to_string(placement);
        EXPECT_FALSE(drawn.eq(drawn[0][0]).all().item<bool>()) << name;  // some numbers differ
      }
    });
}

TEST(RandomTest, NumbersLikeAnotherTensorTakeItsLayoutAndTheDtypeAskedFor) {
  run_ranks(3, [&](World&) {
    const auto mesh = make_mesh({3});
    const at::Tensor like = lay_out(at::zeros({5, 4}), mesh, {Placement::shard(0, {0, 4, 1})});
    const auto check = [&](const at::Tensor& drawn, at::ScalarType dtype, double low, double high) {
      EXPECT_EQ(drawn.scalar_type(), dtype);
      EXPECT_EQ(to_string(spec_of(drawn)->placements()), to_string(spec_of(like)->placements()));
      const at::Tensor numbers = full_tensor(drawn).to(at::kDouble);
      EXPECT_GE(numbers.min().item<double>(), low);
      EXPECT_LT(numbers.max().item<double>(), high);
      EXPECT_GT(numbers.std().item<double>(), 0);
    };
    check(at::rand_like(like, at::kDouble), at::kDouble, 0, 1);
    check(at::randn_like(like), at::kFloat, -9, 9);
    check(at::randint_like(like, 6, at::kLong), at::kLong, 0, 6);
    check(at::randint_like(like, -3, 6), at::kFloat, -3, 6);
  });
}

}  // namespace
}  // namespace shardwise::random_test
