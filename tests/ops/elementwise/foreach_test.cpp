#include "runtime/api/dtensor.h"
#include "runtime/comm/events.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::foreach_test {
namespace {

const std::vector<Dims> kFour = {{5, 4}, {3}, {5, 4}, {3}};
const DenseOptions kForward{.with_partial = false, .with_grad = false};

TEST(ForeachTest, RulesAreStatedPerElement) {
  for (const char* op : {"aten::_foreach_add_.Scalar", "aten::_foreach_addcdiv_.ScalarList", "aten::_foreach_sqrt",
                         "aten::_fused_adam_", "aten::_fused_adamw_.tensor_lr", "aten::_fused_sgd_"})
    EXPECT_EQ(to_string(rule(op)), "pointwise per element") << op;
  EXPECT_EQ(to_string(rule("aten::_foreach_add_.List")), "pointwise linear per element");
  EXPECT_EQ(to_string(rule("aten::_foreach_mul.Tensor")), "pointwise multilinear per element");
}

TEST(ForeachTest, NewLists) {
  const auto compute = [](const Tensors& t) {
    Tensors result = at::_foreach_add({t[0], t[1]}, {t[2], t[3]}, 2);
    for (const Tensors& more :
         {at::_foreach_mul({t[0], t[1]}, 3), at::_foreach_div({t[0], t[1]}, at::ArrayRef<at::Scalar>{2, 4}),
          at::_foreach_sqrt({t[0], t[1]}), at::_foreach_maximum({t[0], t[1]}, {t[2], t[3]})})
      result.insert(result.end(), more.begin(), more.end());
    return result;
  };
  expect_same_as_dense("foreach", compute, kFour, {.low = 1, .is_exact = false, .with_grad = false});
}

TEST(ForeachTest, InPlace) {
  const auto compute = [](const Tensors& t) {
    const Tensors written{t[0].clone(), t[1].clone()};
    at::_foreach_add_(written, {t[2], t[3]});
    at::_foreach_mul_(written, 2);
    at::_foreach_addcmul_(written, {t[2], t[3]}, {t[0], t[1]}, at::ArrayRef<at::Scalar>{1, 2});
    at::_foreach_lerp_(written, {t[2], t[3]}, 0.25);
    return written;
  };
  expect_same_as_dense("foreach in place", compute, kFour, kForward);
}

TEST(ForeachTest, WritesCount) {
  run_ranks(3, [](World&) {
    const at::Tensor x = lay_out(at::arange(20, at::kDouble).view({5, 4}), make_mesh({3}), {Placement::shard(0)});
    const at::Tensor row = x.select(0, 0);  // on one rank: a copied view
    for (int64_t n = 1; n < 4; ++n) {
      const auto version = x._version();
      n < 3 ? at::_foreach_mul_({x}, 2) : at::_foreach_sqrt_({x});
      EXPECT_GT(x._version(), version);
      EXPECT_TRUE(at::equal(full_tensor(row * 1), full_tensor(x)[0]));
    }
    const at::Tensor p = (x * 1).set_requires_grad(true);
    const at::Tensor loss = (p * p).sum();
    {
      const at::NoGradGuard no_grad;
      at::_foreach_add_({p}, 1);
    }
    EXPECT_THROW(loss.backward(), c10::Error);  // as of a dense tensor: p was needed as it was
  });
}

TEST(ForeachTest, PlainElementsAreTorchsAndKeepTheirPlace) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3}), pair = make_mesh({2});
    const Tensors list{at::ones({2}), lay_out(at::ones({5, 4}), mesh, {Placement::shard(0)}), at::full({}, 2.0),
                       lay_out(at::ones({3}), pair, {Placement::shard(0)})};
    const Tensors scaled = at::_foreach_mul(list, at::ArrayRef<at::Scalar>{1, 2, 3, 4});
    EXPECT_TRUE(at::equal(scaled[0], at::ones({2})));
    EXPECT_TRUE(at::equal(full_tensor(scaled[1]), at::full({5, 4}, 2.0)));
    EXPECT_TRUE(at::equal(scaled[2], at::full({}, 6.0)));
    EXPECT_EQ(spec_of(scaled[3])->mesh(), pair);
    at::_foreach_add_(list, scaled);
    EXPECT_TRUE(at::equal(list[0], at::full({2}, 2.0)) && at::equal(list[2], at::full({}, 8.0)));
    at::_foreach_mul_(list, lay_out(at::full({}, 0.5), mesh, {Placement::replicate()}));
    EXPECT_TRUE(at::equal(list[0], at::ones({2})));
    EXPECT_TRUE(at::equal(full_tensor(list[1]), at::full({5, 4}, 1.5)));
  });
}

TEST(ForeachTest, WrittenPartialsStayPartial) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const at::Tensor sum = from_local(at::ones({4}), mesh, {Placement::partial()});
    const at::Tensor other = lay_out(at::ones({4}), mesh, {Placement::shard(0)});
    at::_foreach_mul_(Tensors{sum}, 2);
    at::_foreach_add_(Tensors{sum}, Tensors{other});
    EXPECT_TRUE(spec_of(sum)->layout().has_terms());
    EXPECT_TRUE(at::equal(full_tensor(sum), at::full({4}, 7.0)));
  });
}

TEST(ForeachTest, SumsStayPartialWhereTheOperatorIsLinear) {
  run_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const auto sum = [&](double value) { return from_local(at::full({4}, value), mesh, {Placement::partial()}); };
    const at::Tensor half = lay_out(at::full({}, 0.5), mesh, {Placement::replicate()});
    const at::Tensor rows = lay_out(at::full({4}, 2.0), mesh, {Placement::shard(0)});
    const CommTrace trace;
    const Tensors sums{at::_foreach_add(Tensors{sum(1)}, Tensors{sum(2)}, 2)[0], at::_foreach_neg(Tensors{sum(1)})[0],
                       at::_foreach_div(Tensors{sum(1)}, 2)[0], at::_foreach_mul(Tensors{sum(1)}, half)[0]};
    EXPECT_EQ(trace.total_count(), 0);
    const double expected[] = {15, -3, 1.5, 1.5};
    for (size_t i = 0; i < sums.size(); ++i) {
      EXPECT_TRUE(spec_of(sums[i])->layout().has_terms()) << i;
      EXPECT_TRUE(at::equal(full_tensor(sums[i]), at::full({4}, expected[i]))) << i;
    }
    EXPECT_TRUE(at::equal(full_tensor(at::_foreach_add(Tensors{sum(1)}, 1)[0]), at::full({4}, 4.0)));
    EXPECT_TRUE(at::equal(full_tensor(at::_foreach_add(Tensors{sum(1)}, Tensors{rows})[0]), at::full({4}, 5.0)));
    EXPECT_TRUE(at::equal(full_tensor(at::_foreach_mul(Tensors{sum(1)}, Tensors{sum(1)})[0]), at::full({4}, 9.0)));
    EXPECT_TRUE(at::equal(full_tensor(at::_foreach_div(Tensors{rows}, Tensors{sum(1)})[0]), at::full({4}, 2.0 / 3)));
    const at::Tensor written = from_local(at::zeros({4}, at::kHalf), mesh, {Placement::partial()});
    const double term = 40000 * (mesh->rank() == 0 ? 3 : -1);  // the terms do not fit in half; the sum does
    at::_foreach_add_(Tensors{written}, Tensors{sum(term)});
    EXPECT_TRUE(at::equal(full_tensor(written), at::full({4}, 40000, at::kHalf)));
  });
}

TEST(ForeachTest, Norms) {
  const auto compute = [](const Tensors& t) { return Tensors(at::_foreach_norm({t[0], t[1]}, 2)); };
  expect_same_as_dense("norms", compute, {{5, 4}, {3}}, {.is_exact = false});
}

/// Parameters {5, 4} and {3}, their gradients, and a plain step count each.
Tensors adam_step(const Tensors& t, bool amsgrad) {
  const Tensors parameters{t[0].clone(), t[1].clone()}, grads{t[2].clone(), t[3].clone()};
  Tensors averages, squares, largest, steps;
  for (const at::Tensor& parameter : parameters) {
    averages.push_back(at::zeros_like(parameter));
    squares.push_back(at::ones_like(parameter));
    if (amsgrad) largest.push_back(at::zeros_like(parameter));
    steps.push_back(at::ones({}));
  }
  at::_fused_adam_(parameters, grads, averages, squares, largest, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, amsgrad, false);
  Tensors result = parameters;
  result.insert(result.end(), squares.begin(), squares.end());
  return result;
}

TEST(ForeachTest, FusedAdam) {
  const DenseOptions options{.is_exact = false, .with_partial = false, .with_grad = false};
  for (const bool amsgrad : {false, true})
    expect_same_as_dense("adam", [amsgrad](const Tensors& t) { return adam_step(t, amsgrad); }, kFour, options);
}

TEST(ForeachTest, FusedSgd) {
  const auto compute = [](const Tensors& t) {
    const Tensors parameters{t[0].clone(), t[1].clone()}, grads{t[2].clone(), t[3].clone()};
    const Tensors momentum{at::zeros_like(parameters[0]), at::zeros_like(parameters[1])};
    at::_fused_sgd_(parameters, grads, momentum, 0.01, 0.9, 0.1, 0, /*nesterov=*/false, false, /*is_first_step=*/true);
    return parameters;
  };
  expect_same_as_dense("sgd", compute, kFour, {.is_exact = false, .with_partial = false, .with_grad = false});
}

TEST(ForeachTest, EqualLayoutsSendNothing) {
  const auto step = [](const Tensors& t) { return adam_step(t, false); };
  const Placement uneven = Placement::shard(0, {0, 1, 4}), chunks = Placement::shard(0);
  EXPECT_EQ(bytes_received(step, kFour, {3}, {{uneven}, {chunks}, {uneven}, {chunks}}), 0);
}

}  // namespace
}  // namespace shardwise::foreach_test
