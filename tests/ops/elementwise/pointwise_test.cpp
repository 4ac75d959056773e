#include "runtime/api/dtensor.h"
#include "tests/support/dense.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::pointwise_test {
namespace {

const DenseOptions kPositive{.low = 1, .is_exact = false};

TEST(PointwiseTest, RulesSayWhatIsLinear) {
  EXPECT_EQ(to_string(rule("aten::add.Tensor")), "pointwise linear");
  EXPECT_EQ(to_string(rule("aten::add.Scalar")), "pointwise");
  EXPECT_EQ(to_string(rule("aten::mul.Tensor")), "pointwise multilinear");
  EXPECT_EQ(to_string(rule("aten::div_.Tensor")), "pointwise linear in the first");
}

TEST(PointwiseTest, OverloadsAndInPlaceFormsHaveTheRule) {
  for (const char* op :
       {"aten::pow.Tensor_Scalar", "aten::pow.Scalar", "aten::pow_.Tensor", "aten::clamp.Tensor", "aten::clamp_",
        "aten::where.self", "aten::masked_fill_.Scalar", "aten::eq.Scalar", "aten::relu_", "aten::gelu_"})
    EXPECT_EQ(to_string(rule(op)), "pointwise") << op;
}

// out= may resize, and max.dim reduces.
TEST(PointwiseTest, OtherOverloadsAreLeftAlone) {
  EXPECT_EQ(RuleTable::global().find("aten::add.out"), nullptr);
  EXPECT_EQ(RuleTable::global().find("aten::square"), nullptr);
}

// shapes of the two operands
TEST(PointwiseTest, BinaryOperatorsBroadcast) {
  const std::vector<std::vector<Dims>> rows = {{{0}, {0}},       {{1}, {1}},       {{2, 3}, {2, 3}}, {{5, 4}, {4}},
                                               {{5, 1}, {1, 4}}, {{3}, {2, 1, 3}}, {{5, 0}, {1}}};
  for (const auto& sizes : rows) {
    expect_same_as_dense("add", [](const Tensors& t) { return at::add(t[0], t[1], 2); }, sizes);
    expect_same_as_dense("mul", [](const Tensors& t) { return at::mul(t[0], t[1]); }, sizes);
  }
}

TEST(PointwiseTest, Arithmetic) {
  const std::vector<Dims> sizes = {{5, 4}, {5, 4}};
  expect_same_as_dense("sub", [](const Tensors& t) { return t[0] - t[1]; }, sizes);
  expect_same_as_dense("div", [](const Tensors& t) { return t[0] / t[1]; }, sizes, {.low = 1, .is_exact = false});
  expect_same_as_dense("div trunc", [](const Tensors& t) { return at::div(t[0], t[1], "trunc"); }, sizes, {.low = 1});
  expect_same_as_dense("lerp", [](const Tensors& t) { return at::lerp(t[0], t[1], 0.25); }, sizes);
  expect_same_as_dense("pow", [](const Tensors& t) { return at::pow(t[0], t[1]); }, {{2, 3}, {2, 3}},
                       {.low = 1, .high = 32, .is_exact = false});
  expect_same_as_dense("maximum", [](const Tensors& t) { return at::maximum(t[0], t[1]); }, sizes);
  expect_same_as_dense("remainder", [](const Tensors& t) { return at::remainder(t[0], t[1]); }, sizes,
                       {.low = 1, .with_grad = false});
  expect_same_as_dense("neg", [](const Tensors& t) { return -t[0]; }, {{5, 4}});
}

TEST(PointwiseTest, ScalarsCountOnce) {
  expect_same_as_dense("add.Scalar", [](const Tensors& t) { return t[0] + 3; }, {{5, 4}});
  expect_same_as_dense("mul.Scalar", [](const Tensors& t) { return t[0] * 3; }, {{5, 4}});
  expect_same_as_dense("div.Scalar", [](const Tensors& t) { return t[0] / 4; }, {{5, 4}});
  expect_same_as_dense("rsub", [](const Tensors& t) { return 1 - t[0]; }, {{5, 4}});
  expect_same_as_dense("rdiv", [](const Tensors& t) { return 1 / t[0]; }, {{5, 4}}, kPositive);
  expect_same_as_dense("0-dim", [](const Tensors& t) { return t[0] + t[1] * t[0]; }, {{5, 4}, {}});
  expect_same_as_dense("plain 0-dim", [](const Tensors& t) { return t[0] + at::scalar_tensor(2, at::kDouble) * t[0]; },
                       {{5, 4}});
}

TEST(PointwiseTest, ThreeOperands) {
  const std::vector<Dims> sizes = {{5, 4}, {4}, {5, 1}};
  expect_same_as_dense("addcmul", [](const Tensors& t) { return at::addcmul(t[0], t[1], t[2], 2); }, sizes);
  expect_same_as_dense("addcdiv", [](const Tensors& t) { return at::addcdiv(t[0], t[1], t[2], 2); }, sizes, kPositive);
  expect_same_as_dense("lerp.Tensor", [](const Tensors& t) { return at::lerp(t[0], t[1], t[2]); },
                       {{5, 4}, {5, 4}, {5, 4}}, {.is_exact = false});
  expect_same_as_dense("where", [](const Tensors& t) { return at::where(t[0] > 0, t[1], t[2]); }, sizes);
  expect_same_as_dense("clamp.Tensor", [](const Tensors& t) { return at::clamp(t[0], t[1], t[2]); }, sizes,
                       {.with_grad = false});
}

TEST(PointwiseTest, InPlace) {
  const std::vector<Dims> sizes = {{5, 4}, {5, 4}};
  expect_same_as_dense("add_", [](const Tensors& t) { return t[0].clone().add_(t[1]); }, sizes);
  expect_same_as_dense("mul_", [](const Tensors& t) { return t[0].clone().mul_(t[1]); }, sizes);
  expect_same_as_dense("add_.Scalar", [](const Tensors& t) { return t[0].clone().add_(1); }, {{5, 4}});
  expect_same_as_dense("fill_", [](const Tensors& t) { return t[0].clone().fill_(3); }, {{5, 4}});
  expect_same_as_dense("zero_", [](const Tensors& t) { return t[0].clone().zero_(); }, {{5, 4}});
  expect_same_as_dense("clamp_", [](const Tensors& t) { return t[0].clone().clamp_(-2, 2); }, {{5, 4}});
  expect_same_as_dense("masked_fill_", [](const Tensors& t) { return t[0].clone().masked_fill_(t[1] > 0, 7); },
                       {{5, 4}, {4}});
  expect_same_as_dense("relu_", [](const Tensors& t) { return t[0].clone().relu_(); }, {{5, 4}});
}

TEST(PointwiseTest, ComparisonsAndLogic) {
  const std::vector<Dims> sizes = {{5, 4}, {4}};
  const auto compare = [](const Tensors& t) {
    return Tensors{
        t[0].eq(t[1]),  t[0].lt(t[1]), t[0].ge(0), at::logical_and(t[0].gt(0), t[1].gt(0)), t[0].gt(0).logical_not(),
        at::isnan(t[0])};
  };
  expect_same_as_dense("comparisons", compare, sizes, {.low = -2, .high = 3, .with_grad = false});
  const auto bits = [](const Tensors& t) {
    return Tensors{t[0] & t[1], t[0] | t[1], t[0] ^ t[1], at::bitwise_not(t[0]), at::gcd(t[0], t[1])};
  };
  expect_same_as_dense("bits", bits, sizes, {.dtype = at::kLong});
}

TEST(PointwiseTest, Integers) {
  expect_same_as_dense("int add", [](const Tensors& t) { return at::add(t[0], t[1]); }, {{5, 4}, {4}},
                       {.dtype = at::kLong});
  expect_same_as_dense("int div", [](const Tensors& t) { return at::div(t[0], t[1]); }, {{5, 4}, {4}},
                       {.low = 1, .dtype = at::kLong, .is_exact = false});
}

TEST(PointwiseTest, Unary) {
  using Unary = at::Tensor (*)(const at::Tensor&);
  const std::vector<std::pair<const char*, Unary>> anywhere = {
      {"abs", at::abs}, {"exp", at::exp}, {"sin", at::sin}, {"tanh", at::tanh}, {"erf", at::erf}};
  for (const auto& [name, f] : anywhere)
    expect_same_as_dense(name, [f = f](const Tensors& t) { return f(t[0]); }, {{5, 3}}, {.is_exact = false});
  const std::vector<std::pair<const char*, Unary>> positive = {{"log", at::log},
                                                               {"sqrt", at::sqrt},
                                                               {"rsqrt", at::rsqrt},
                                                               {"reciprocal", at::reciprocal},
                                                               {"lgamma", at::lgamma}};
  for (const auto& [name, f] : positive)
    expect_same_as_dense(name, [f = f](const Tensors& t) { return f(t[0]); }, {{5, 3}}, kPositive);
}

const auto kAdd = [](const Tensors& t) { return Tensors{t[0] + t[1]}; };

TEST(PointwiseTest, EqualLayoutsSendNothing) {
  const Placement uneven = Placement::shard(0, {0, 1, 4});
  EXPECT_EQ(bytes_received(kAdd, {{5, 4}, {5, 4}}, {3}, {{uneven}, {uneven}}), 0);
  EXPECT_EQ(bytes_received(kAdd, {{5, 4}, {5, 4}}, {3}, {{uneven}, {Placement::replicate()}}), 0);
  EXPECT_EQ(bytes_received(kAdd, {{5, 4}, {4}}, {3}, {{uneven}, {Placement::replicate()}}), 0);
  EXPECT_EQ(bytes_received(kAdd, {{5, 4}, {5, 1}}, {3}, {{uneven}, {uneven}}), 0);
}

TEST(PointwiseTest, PartialsStayPartialWhereTheOperatorIsLinear) {
  const Placement part = Placement::partial(), whole = Placement::replicate();
  const auto divide = [](const Tensors& t) { return Tensors{t[0] / t[1]}; };
  EXPECT_EQ(bytes_received(kAdd, {{5, 4}, {5, 4}}, {3}, {{part}, {part}}), 0);
  EXPECT_EQ(bytes_received(divide, {{5, 4}, {5, 4}}, {3}, {{part}, {whole}}), 0);
  EXPECT_GT(bytes_received(divide, {{5, 4}, {5, 4}}, {3}, {{whole}, {part}}), 0);
}

TEST(PointwiseTest, PartialsOfDifferentKindsMix) {
  const std::vector<Reduce> kinds = {Reduce::kSum, Reduce::kAvg, Reduce::kMax, Reduce::kMin, Reduce::kProduct};
  run_ranks(3, [&](World&) {
    auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{3}, {0, 1, 2}});
    const at::Tensor values = at::arange(1, 7, at::kDouble);
    for (const Reduce a : kinds)
      for (const Reduce b : kinds) {
        const at::Tensor x = distribute_tensor(values, mesh, {Placement::partial(a)}, std::nullopt);
        const at::Tensor y = distribute_tensor(values, mesh, {Placement::partial(b)}, std::nullopt);
        EXPECT_TRUE(at::equal(full_tensor(x + y), values * 2)) << to_string(a) << " + " << to_string(b);
        EXPECT_TRUE(at::equal(full_tensor(x * y), values * values)) << to_string(a) << " * " << to_string(b);
        EXPECT_TRUE(at::equal(full_tensor(-x), -values)) << to_string(a);
      }
  });
}

TEST(PointwiseTest, SizesThatDoNotBroadcastAreAnError) {
  const std::string error = error_of_ranks(3, [](World&) {
    auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{3}, {0, 1, 2}});
    full({5}, 1, mesh, {Placement::shard(0)}, at::kDouble) + full({4}, 1, mesh, {Placement::shard(0)}, at::kDouble);
  });
  expect_error("[aten::add.Tensor] dim 0 of the tensor of shape [5] does not match the other tensors, whose size is",
               error);
}

}  // namespace
}  // namespace shardwise::pointwise_test
