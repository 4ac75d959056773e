#include "runtime/api/dtensor.h"
#include "tests/support/called_operators.h"
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::losses_test {
namespace {

const DenseOptions kFew{.meshes = {{3}, {2, 2}}, .is_exact = false, .max_combinations = 7};
constexpr int64_t kReductions[] = {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum};

struct Loss {
  const char* name;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)> of;
};

const std::vector<Loss> kElementwise{
    {"mse_loss", [](const at::Tensor& x, const at::Tensor& y, int64_t r) { return at::mse_loss(x, y, r); }},
    {"l1_loss", [](const at::Tensor& x, const at::Tensor& y, int64_t r) { return at::l1_loss(x, y, r); }},
    {"smooth_l1_loss",
     [](const at::Tensor& x, const at::Tensor& y, int64_t r) { return at::smooth_l1_loss(x, y, r, 0.5); }},
    {"huber_loss", [](const at::Tensor& x, const at::Tensor& y, int64_t r) { return at::huber_loss(x, y, r, 0.5); }},
    {"binary_cross_entropy", [](const at::Tensor& x, const at::Tensor& y,
                                int64_t r) { return at::binary_cross_entropy(x.sigmoid(), y.sigmoid(), {}, r); }},
    {"binary_cross_entropy_with_logits",
     [](const at::Tensor& x, const at::Tensor& y, int64_t r) {
       return at::binary_cross_entropy_with_logits(x, y.sigmoid(), y.detach().sigmoid(), {}, r);
     }},
    {"soft_margin_loss",
     [](const at::Tensor& x, const at::Tensor& y, int64_t r) { return at::soft_margin_loss(x, y.detach(), r); }},
    {"kl_div", [](const at::Tensor& x, const at::Tensor& y, int64_t r) { return at::kl_div(x, y.sigmoid(), r); }},
    {"poisson_nll_loss", [](const at::Tensor& x, const at::Tensor& y,
                            int64_t r) { return at::poisson_nll_loss(x, y, true, false, 1e-8, r); }},
    {"hinge_embedding_loss", [](const at::Tensor& x, const at::Tensor& y,
                                int64_t r) { return at::hinge_embedding_loss(x, y.detach().sign(), 1, r); }},
};

at::Tensor labels(const at::Tensor& tensor, int64_t n_classes) {
  return tensor.detach().mul(16).remainder(static_cast<double>(n_classes)).to(at::kLong);
}

at::Tensor gradient(const at::Tensor& result, const at::Tensor& input) {
  return torch::autograd::grad({result}, {input}, {at::ones_like(result)}, true, /*create_graph=*/true)[0];
}

TEST(LossesTest, RulesAreThoseOfTheTerms) {
  EXPECT_EQ(to_string(rule("aten::mse_loss")), "pointwise");
  EXPECT_EQ(to_string(rule("aten::huber_loss_backward")), "pointwise linear in the first");
  EXPECT_EQ(to_string(rule("aten::multi_margin_loss")), "by sample");
  EXPECT_EQ(to_string(rule("shardwise::nll_pick")), "nc…,n…,c->n…,n… {c: sum}");
}

TEST(LossesTest, ElementwiseLossesAreDense) {
  for (const Loss& loss : kElementwise)
    for (int64_t reduction : kReductions)
      expect_same_as_dense(
          loss.name, [&](const Tensors& t) { return loss.of(t[0], t[1], reduction); }, {{5, 4}, {5, 4}}, kFew);
}

// Each rank has some of the terms and divides by the global count: by its own, gradients would be too large.
TEST(LossesTest, MeansOfUnevenShardsAndTheirGradientsUseTheGlobalCount) {
  for (const Loss& loss : kElementwise) {
    const std::vector<std::pair<Placement, Placement>> layouts{
        {Placement::shard(0), Placement::shard(0)},
        {Placement::shard(0, {0, 1, 4}), Placement::shard(0, {0, 1, 4})},
        {Placement::shard(0, {3, 0, 2}), Placement::replicate()}};
    const std::string error = error_of_ranks(3, [&](World&) {
      const auto mesh = make_mesh({3});
      const at::Tensor x = at::linspace(-2, 2, 20, at::kDouble).view({5, 4}).requires_grad_();
      const at::Tensor y = at::linspace(1, -1, 20, at::kDouble).view({5, 4});
      const at::Tensor dense = loss.of(x, y, at::Reduction::Mean);
      const at::Tensor expected = torch::autograd::grad({dense}, {x})[0];
      for (const auto& [of_x, of_y] : layouts) {
        const at::Tensor ours = lay_out(x.detach(), mesh, {of_x}).requires_grad_();
        const at::Tensor mean = loss.of(ours, lay_out(y, mesh, {of_y}), at::Reduction::Mean);
        EXPECT_TRUE(at::allclose(full_tensor(mean), dense)) << loss.name;
        const at::Tensor grad = torch::autograd::grad({mean}, {ours})[0];
        EXPECT_TRUE(at::allclose(full_tensor(grad), expected)) << loss.name;
        if (of_y == of_x) {
          EXPECT_EQ(spec_of(grad)->placements()[0], spec_of(ours)->placements()[0]) << loss.name;
        }
      }
    });
    EXPECT_EQ(error, "");
  }
}

// Where each rank has all elements, torch's kernel divides by the right count.
TEST(LossesTest, OnlyShardsNeedADivisionOfTheirOwn) {
  const auto divisions = [](const MeshPtr& mesh, const Placement& placement) {
    const at::Tensor x = lay_out(at::ones({6, 4}), mesh, {placement}).requires_grad_();
    const at::Tensor loss = at::mse_loss(x, lay_out(at::zeros({6, 4}), mesh, {placement}));
    return calls_of("aten::div", [&] {
      const at::Tensor grad = torch::autograd::grad({loss}, {x})[0];
      EXPECT_TRUE(at::allclose(full_tensor(grad), at::full({6, 4}, 2.0 / 24)));
    });
  };
  run_ranks(1, [&](World&) { EXPECT_EQ(divisions(make_mesh({1}), Placement::shard(0)), 0); });
  run_ranks(2, [&](World&) {
    EXPECT_EQ(divisions(make_mesh({2}), Placement::replicate()), 0);
    EXPECT_GT(divisions(make_mesh({2}), Placement::shard(0)), 0);
  });
}

TEST(LossesTest, SecondOrderIsDense) {
  for (const Loss& loss : kElementwise)
    if (std::string(loss.name) != "hinge_embedding_loss" && std::string(loss.name) != "l1_loss")
      expect_same_as_dense(loss.name,
                           [&](const Tensors& t) { return gradient(loss.of(t[0], t[1], at::Reduction::Mean), t[0]); },
                           {{5, 2}, {5, 2}}, {.meshes = {{3}}, .is_exact = false, .max_combinations = 5});
}

TEST(LossesTest, LossesOfNothingAreDense) {
  for (const Loss& loss : kElementwise)
    for (int64_t reduction : kReductions)
      expect_same_as_dense(
          loss.name, [&](const Tensors& t) { return loss.of(t[0], t[1], reduction); }, {{0, 4}, {0, 4}}, kFew);
}

TEST(LossesTest, ItemOfASumIsTheWholeSumOnEachRank) {
  const std::string error = error_of_ranks(4, [](World&) {
    const auto mesh = make_mesh({4});
    const at::Tensor dense = at::arange(5, at::kDouble);
    for (const Placement& placement : {Placement::shard(0), Placement::shard(0, {0, 1, 4, 0}), Placement::replicate()})
      EXPECT_EQ(lay_out(dense, mesh, {placement}).sum().item<double>(), 10);
  });
  EXPECT_EQ(error, "");
}

TEST(LossesTest, TermsStayWhereTheyAre) {
  const auto none = [](const Tensors& t) { return Tensors{at::mse_loss(t[0], t[1], at::Reduction::None)}; };
  const auto mean = [](const Tensors& t) { return Tensors{at::huber_loss(t[0], t[1])}; };
  for (const auto& placement : {Placement::shard(0), Placement::shard(1)}) {
    EXPECT_EQ(bytes_received(none, {{5, 4}, {5, 4}}, {3}, {{placement}, {placement}}), 0);
    EXPECT_EQ(bytes_received(mean, {{5, 4}, {5, 4}}, {3}, {{placement}, {placement}}), 0);
  }
}

TEST(LossesTest, CrossEntropyIsDense) {
  for (int64_t reduction : kReductions)
    for (const double smoothing : {0.0, 0.25}) {
      const auto plain = [&](const Tensors& t) {
        return at::cross_entropy_loss(t[0], labels(t[1], 5), {}, reduction, -100, smoothing);
      };
      expect_same_as_dense("cross entropy", plain, {{6, 5}, {6}}, kFew);
      const auto weighted = [&](const Tensors& t) {
        return at::cross_entropy_loss(t[0], labels(t[1], 5), t[2].detach().abs(), reduction, 2, smoothing);
      };
      expect_same_as_dense("weighted cross entropy", weighted, {{6, 5}, {6}, {5}}, kFew);
    }
}

TEST(LossesTest, CrossEntropyOfManyDimsIsDense) {
  for (int64_t reduction : kReductions) {
    const auto loss = [&](const Tensors& t) {
      return at::cross_entropy_loss(t[0], labels(t[1], 4), {}, reduction, /*ignore_index=*/1);
    };
    expect_same_as_dense("of images", loss, {{2, 4, 3, 2}, {2, 3, 2}}, kFew);
    expect_same_as_dense("of sequences", loss, {{3, 4, 5}, {3, 5}}, kFew);
    expect_same_as_dense("of one sample", loss, {{4}, {}}, kFew);
    expect_same_as_dense("of no sample", loss, {{0, 4}, {0}}, kFew);
  }
}

TEST(LossesTest, CrossEntropyOfProbabilitiesIsDense) {
  for (int64_t reduction : kReductions) {
    const auto loss = [&](const Tensors& t) {
      return at::cross_entropy_loss(t[0], at::softmax(t[1], 1), t[2].detach().abs(), reduction, -100, 0.125);
    };
    expect_same_as_dense("of probabilities", loss, {{4, 5}, {4, 5}, {5}}, kFew);
  }
}

TEST(LossesTest, NllOfSecondOrderIsDense) {
  const auto second = [](const Tensors& t) {
    return gradient(at::cross_entropy_loss(t[0], labels(t[1], 5), t[2].detach().abs()), t[0]);
  };
  expect_same_as_dense("second order", second, {{4, 5}, {4}, {5}}, kFew);
}

TEST(LossesTest, EveryTargetIgnoredIsDense) {
  const auto loss = [](const Tensors& t) {
    return at::cross_entropy_loss(t[0], labels(t[1], 1), {}, at::Reduction::Mean, 0);
  };
  expect_same_as_dense("all ignored", loss, {{5, 3}, {5}}, kFew);
}

// 64 x 512 logits are 262,144 bytes; with sharded classes only a few numbers per sample travel.
TEST(LossesTest, ShardedClassesDoNotGatherLogits) {
  const auto both_ways = [](const Tensors& t) {
    const at::Tensor logits = t[0].detach().requires_grad_();
    const at::Tensor loss = at::cross_entropy_loss(logits, labels(t[1], 512));
    return torch::autograd::grad({loss}, {logits});
  };
  const int64_t bytes =
      bytes_received(both_ways, {{64, 512}, {64}}, {4}, {{Placement::shard(1)}, {Placement::replicate()}});
  EXPECT_GT(bytes, 0);
  EXPECT_LT(bytes, 64 * 8 * 8);
  EXPECT_LE(bytes_received(both_ways, {{64, 512}, {64}}, {4}, {{Placement::shard(0)}, {Placement::shard(0)}}), 128);
}

TEST(LossesTest, GradientsOfShardedClassesStaySharded) {
  const std::string error = error_of_ranks(3, [](World&) {
    const auto mesh = make_mesh({3});
    const at::Tensor logits = lay_out(at::rand({4, 7}), mesh, {Placement::shard(1)}).requires_grad_();
    const at::Tensor targets = lay_out(at::tensor({6, 0, 3, 2}, at::kLong), mesh, {Placement::replicate()});
    const at::Tensor grad = torch::autograd::grad({at::cross_entropy_loss(logits, targets)}, {logits})[0];
    EXPECT_TRUE(spec_of(grad)->placements()[0].is_shard(1));
  });
  EXPECT_EQ(error, "");
}

TEST(LossesTest, AClassOutOfRangeIsAnErrorOnAllRanks) {
  for (const Placement& placement : {Placement::shard(0), Placement::replicate()}) {
    const auto errors = on_each_rank(3, [&](World&) -> std::string {
      const auto mesh = make_mesh({3});
      const at::Tensor logits = lay_out(at::rand({4, 7}), mesh, {placement});
      const at::Tensor targets = lay_out(at::tensor({6, 7, 3, 2}, at::kLong), mesh, {placement});
      try {
        at::cross_entropy_loss(logits, targets);
      } catch (const c10::IndexError& error) {
        return error.what_without_backtrace();
      }
      return "";
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "Target 7 is out of bounds.");
  }
}

TEST(LossesTest, MarginsOfSamplesAreDense) {
  for (int64_t reduction : kReductions) {
    const auto multi = [&](const Tensors& t) {
      return at::multi_margin_loss(t[0], labels(t[1], 4), 1, 1, t[2].detach().abs(), reduction);
    };
    expect_same_as_dense("multi margin", multi, {{5, 4}, {5}, {4}}, kFew);
    const auto multilabel = [&](const Tensors& t) {
      return at::multilabel_margin_loss(t[0], labels(t[1], 5).sub(1), reduction);
    };
    expect_same_as_dense("multilabel margin", multilabel, {{5, 4}, {5, 4}}, kFew);
    const auto cosine = [&](const Tensors& t) {
      return at::cosine_embedding_loss(t[0], t[1], t[2].detach().sign(), 0.25, reduction);
    };
    expect_same_as_dense("cosine embedding", cosine, {{5, 4}, {5, 4}, {5}}, kFew);
    const auto triplet = [&](const Tensors& t) {
      return at::triplet_margin_loss(t[0], t[1], t[2], 1, 2, 1e-6, false, reduction);
    };
    expect_same_as_dense("triplet margin", triplet, {{5, 4}, {5, 4}, {5, 4}}, kFew);
    const auto ranking = [&](const Tensors& t) {
      return at::margin_ranking_loss(t[0], t[1], t[2].detach().sign(), 0.5, reduction);
    };
    expect_same_as_dense("margin ranking", ranking, {{5}, {5}, {5}}, kFew);
  }
}

TEST(LossesTest, MarginsOfOneSampleAreDense) {
  const std::string error = error_of_ranks(2, [](World&) {
    const auto mesh = make_mesh({2});
    const at::Tensor dense = at::linspace(-1, 1, 4, at::kDouble).requires_grad_(), target = at::tensor(2, at::kLong);
    const at::Tensor ours = lay_out(dense.detach(), mesh, {Placement::shard(0)}).requires_grad_();
    const at::Tensor its_target = lay_out(target, mesh, {Placement::replicate()});
    const at::Tensor expected = at::multi_margin_loss(dense, target), actual = at::multi_margin_loss(ours, its_target);
    EXPECT_TRUE(at::allclose(full_tensor(actual), expected));
    EXPECT_TRUE(at::allclose(full_tensor(gradient(actual, ours)), gradient(expected, dense)));
  });
  EXPECT_EQ(error, "");
}

TEST(LossesTest, CtcIsDense) {
  for (int64_t reduction : kReductions) {
    const auto listed = [&](const Tensors& t) {
      return at::ctc_loss(at::log_softmax(t[0], 2), labels(t[1], 3).add(1), {5, 6, 4}, {2, 3, 1}, 0, reduction);
    };
    const std::string error = error_of_ranks(3, [&](World&) {
      const auto mesh = make_mesh({3});
      const at::Tensor dense = at::linspace(-2, 2, 72, at::kDouble).view({6, 3, 4}).requires_grad_();
      const at::Tensor targets = at::linspace(0, 1, 9, at::kDouble).view({3, 3});
      const at::Tensor lengths = at::tensor({5, 6, 4}), lengths_of_targets = at::tensor({2, 3, 1});
      for (const Placement& placement : {Placement::shard(0), Placement::shard(1), Placement::replicate()}) {
        const at::Tensor ours = lay_out(dense.detach(), mesh, {placement}).requires_grad_();
        const at::Tensor its_targets = lay_out(targets, mesh, {Placement::shard(0)});
        const at::Tensor expected = listed({dense, targets}), actual = listed({ours, its_targets});
        EXPECT_TRUE(at::allclose(full_tensor(actual), expected));
        EXPECT_TRUE(at::allclose(full_tensor(gradient(actual, ours)), gradient(expected, dense)));
        const at::Tensor by_tensors = at::ctc_loss(
            at::log_softmax(ours, 2), labels(its_targets, 3).add(1), lay_out(lengths, mesh, {Placement::shard(0)}),
            lay_out(lengths_of_targets, mesh, {Placement::replicate()}), 0, reduction);
        EXPECT_TRUE(at::allclose(full_tensor(by_tensors), expected));
      }
    });
    EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace shardwise::losses_test
