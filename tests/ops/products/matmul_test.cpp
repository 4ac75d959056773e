// Contractions: their rules as text, their values and gradients against dense ones, and what they send.
#include "tests/support/dense.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::matmul_test {
namespace {

TEST(MatmulTest, RulesReadAsTheirNotation) {
  EXPECT_EQ(to_string(rule("aten::mm")), "mk,kn->mn {k: sum} multilinear");
  EXPECT_EQ(to_string(rule("aten::addmm")), "bias + mk,kn->mn {k: sum} multilinear");
  EXPECT_EQ(to_string(rule("shardwise::matmul")), "…mk,…kn->…mn {k: sum} multilinear");
}

TEST(MatmulTest, ProductsOfMatricesAndVectorsAreDense) {
  for (const auto& [m, k, n] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{5, 7, 2}, {0, 3, 4}, {2, 0, 3}, {1, 1, 1}})
    expect_same_as_dense("mm", [](const Tensors& t) { return at::mm(t[0], t[1]); }, {{m, k}, {k, n}});
  expect_same_as_dense("bmm", [](const Tensors& t) { return at::bmm(t[0], t[1]); }, {{3, 4, 5}, {3, 5, 2}});
  expect_same_as_dense("mv", [](const Tensors& t) { return at::mv(t[0], t[1]); }, {{5, 4}, {4}});
  expect_same_as_dense("dot", [](const Tensors& t) { return at::dot(t[0], t[1]); }, {{7}, {7}});
}

TEST(MatmulTest, WhatIsAddedIsAddedOnce) {
  const auto addmm = [](const Tensors& t) { return at::addmm(t[0], t[1], t[2], 0.5, 2); };
  for (const Dims& bias : {Dims{4}, Dims{5, 4}, Dims{1, 4}, Dims{5, 1}, Dims{1}, Dims{}})
    expect_same_as_dense("addmm", addmm, {bias, {5, 6}, {6, 4}});
  expect_same_as_dense("addmm of an empty sum", addmm, {{4}, {5, 0}, {0, 4}});
  expect_same_as_dense("baddbmm", [](const Tensors& t) { return at::baddbmm(t[0], t[1], t[2]); },
                       {{4, 1}, {3, 4, 5}, {3, 5, 2}});
  expect_same_as_dense("addmv", [](const Tensors& t) { return at::addmv(t[0], t[1], t[2]); }, {{5}, {5, 4}, {4}});
}

TEST(MatmulTest, SumsOfProductsAreDense) {
  const DenseOptions some{.meshes = {{3}, {2, 2}}, .max_combinations = 20};
  // A bias of one element, on ranks without rows too.
  for (const Dims& bias : {Dims{5}, Dims{1}, Dims{}})
    expect_same_as_dense(
        "addmv", [](const Tensors& t) { return at::addmv(t[0], t[1], t[2], 0.5, 2); }, {bias, {5, 2}, {2}}, some);
  const auto addbmm = [](const Tensors& t) { return at::addbmm(t[0], t[1], t[2], 0.5, 2); };
  expect_same_as_dense("addbmm", addbmm, {{4, 2}, {3, 4, 5}, {3, 5, 2}}, some);
  expect_same_as_dense(
      "addr", [](const Tensors& t) { return at::addr(t[0], t[1], t[2], 0.5, 2); }, {{5, 4}, {5}, {4}}, some);
  const auto bilinear = [](const Tensors& t) { return at::bilinear(t[0], t[1], t[2], t[3]); };
  expect_same_as_dense("bilinear", bilinear, {{5, 3}, {5, 4}, {2, 3, 4}, {2}}, some);
  expect_same_as_dense(
      "cross", [](const Tensors& t) { return at::linalg_cross(t[0], t[1], 1); }, {{5, 3}, {5, 3}}, some);
}

TEST(MatmulTest, SumsOfProductsStaySharded) {
  const auto bilinear = [](const Tensors& t) { return Tensors{at::bilinear(t[0], t[1], t[2])}; };
  const std::vector<Placement> batch{Placement::shard(0)}, all{Placement::replicate()};
  EXPECT_EQ(bytes_received(bilinear, {{5, 3}, {5, 4}, {2, 3, 4}}, {3}, {batch, batch, all}), 0);
  EXPECT_EQ(bytes_received(bilinear, {{5, 3}, {5, 4}, {2, 3, 4}}, {3}, {all, all, batch}), 0);
  const auto addbmm = [](const Tensors& t) { return Tensors{at::addbmm(t[0], t[1], t[2])}; };
  EXPECT_EQ(bytes_received(addbmm, {{4, 2}, {3, 4, 5}, {3, 5, 2}}, {3}, {{Placement::partial()}, batch, batch}), 0);
}

TEST(MatmulTest, MatmulBroadcastsBatchDims) {
  const std::vector<std::vector<Dims>> shapes = {
      {{4}, {4}},
      {{4}, {4, 3}},
      {{3, 4}, {4}},
      {{3, 4}, {4, 2}},
      {{5, 3, 4}, {4}},
      {{4}, {5, 4, 3}},
      {{5, 3, 4}, {4, 2}},
      {{3, 4}, {5, 4, 2}},
      {{5, 3, 4}, {5, 4, 2}},
      {{2, 1, 3, 4}, {5, 4, 2}},
      {{1, 3, 4}, {2, 4, 1}},
      {{2, 3, 1, 4}, {2, 1, 4, 3}},
      {{0, 3, 4}, {4, 2}},
      {{2, 3, 4}, {0, 1, 4, 2}},
  };
  for (const auto& sizes : shapes)
    expect_same_as_dense("matmul", [](const Tensors& t) { return at::matmul(t[0], t[1]); }, sizes,
                         {.max_combinations = 25});
}

TEST(MatmulTest, MatmulIsDifferentiableTwice) {
  const auto second = [](const Tensors& t) {
    const at::Tensor product = at::matmul(t[0], t[1]);
    const Tensors first =
        torch::autograd::grad({product.mul(product).sum()}, {t[0], t[1]}, {}, true, /*create_graph=*/true);
    return at::cat({first[0].reshape({-1}), first[1].reshape({-1})});
  };
  expect_same_as_dense("matmul", second, {{3, 2, 4}, {4, 2}}, {.is_exact = false, .max_combinations = 10});
}

TEST(MatmulTest, OneMatrixForABatchShardedOnItsMiddleDimGathersNothing) {
  const auto backward = [](const Tensors& t) {
    const at::Tensor product = at::matmul(t[0], t[1].requires_grad_());
    return torch::autograd::grad({product}, {t[1]}, {product.detach()});
  };
  EXPECT_EQ(bytes_received(backward, {{3, 6, 4}, {4, 2}}, {2}, {{Placement::shard(1)}, {Placement::replicate()}}), 0);
}

}  // namespace
}  // namespace shardwise::matmul_test
