// Operators on matrices and Fourier transforms: batch dims stay sharded.
#include "tests/support/dense.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace shardwise::linalg_test {
namespace {

const DenseOptions kClose{.is_exact = false, .max_combinations = 15};
const DenseOptions kNoGrad{.is_exact = false, .with_grad = false, .max_combinations = 15};

/// Symmetric, its eigenvalues far from 0.
at::Tensor definite(const at::Tensor& x) {
  const at::Tensor square = x.matmul(x.mT());
  return square + square.detach().mul(0).add(1).tril().triu().mul(100);
}

TEST(LinalgTest, RulesNameTheMatrices) {
  EXPECT_EQ(to_string(rule("aten::linalg_inv_ex")), "…__->…__,…");
  EXPECT_EQ(to_string(rule("aten::_linalg_svd")), "…__->…__,…_,…__");
  EXPECT_EQ(to_string(rule("aten::_fft_r2c")), "Fourier transform linear");
}

TEST(LinalgTest, BatchesOfMatricesAreDense) {
  expect_same_as_dense("inv", [](const Tensors& t) { return at::linalg_inv(definite(t[0])); }, {{5, 3, 3}}, kClose);
  expect_same_as_dense("det", [](const Tensors& t) { return at::linalg_det(t[0]); }, {{5, 3, 3}}, kNoGrad);
  expect_same_as_dense(
      "slogdet", [](const Tensors& t) { return std::get<1>(at::linalg_slogdet(definite(t[0]))); }, {{5, 3, 3}}, kClose);
  expect_same_as_dense(
      "cholesky", [](const Tensors& t) { return at::linalg_cholesky(definite(t[0])); }, {{4, 3, 3}}, kNoGrad);
  expect_same_as_dense(
      "solve", [](const Tensors& t) { return at::linalg_solve(definite(t[0]), t[1]); }, {{5, 3, 3}, {5, 3, 2}}, kClose);
  expect_same_as_dense(
      "solve for vectors", [](const Tensors& t) { return at::linalg_solve(definite(t[0]), t[1]); }, {{5, 3, 3}, {5, 3}},
      kNoGrad);
  expect_same_as_dense(
      "one matrix for a batch", [](const Tensors& t) { return at::linalg_solve(definite(t[0]), t[1]); },
      {{3, 3}, {5, 3, 2}}, kClose);
  expect_same_as_dense(
      "eigenvalues", [](const Tensors& t) { return at::linalg_eigvalsh(definite(t[0])); }, {{2, 3, 3, 3}}, kNoGrad);
  expect_same_as_dense(
      "singular values", [](const Tensors& t) { return at::linalg_svdvals(t[0]); }, {{5, 3, 2}}, kNoGrad);
  expect_same_as_dense(
      "qr", [](const Tensors& t) { return std::get<1>(at::linalg_qr(t[0])).abs(); }, {{5, 3, 2}}, kNoGrad);
  expect_same_as_dense(
      "a single matrix", [](const Tensors& t) { return at::linalg_inv(definite(t[0])); }, {{3, 3}}, kClose);
  expect_same_as_dense("no matrix", [](const Tensors& t) { return at::linalg_inv(t[0]); }, {{0, 3, 3}}, kClose);
}

TEST(LinalgTest, ShardedBatchesStay) {
  const auto inverse = [](const Tensors& t) { return Tensors{std::get<0>(at::linalg_inv_ex(t[0]))}; };
  const auto values = [](const Tensors& t) { return Tensors{at::linalg_svdvals(t[0])}; };
  EXPECT_EQ(bytes_received(inverse, {{5, 3, 3}}, {3}, {{Placement::shard(0)}}), 0);
  EXPECT_EQ(bytes_received(values, {{5, 3, 3}}, {3}, {{Placement::shard(0)}}), 0);
  EXPECT_GT(bytes_received(inverse, {{5, 3, 3}}, {3}, {{Placement::shard(1)}}), 0);
}

TEST(TransformsTest, FourierTransformsAreDense) {
  const auto real = [](const Tensors& t) { return at::abs(at::fft_rfft(t[0], {}, 1)); };
  expect_same_as_dense("rfft", real, {{5, 6}}, kClose);
  const auto there_and_back = [](const Tensors& t) { return at::fft_irfft(at::fft_rfft(t[0], {}, 0), 5, 0); };
  expect_same_as_dense("rfft and back", there_and_back, {{5, 4}}, kClose);
  const auto two = [](const Tensors& t) { return at::real(at::fft_fft2(t[0])).clone(); };
  expect_same_as_dense("fft2", two, {{3, 4, 5}}, kNoGrad);
}

TEST(TransformsTest, OtherDimsAndSumsStay) {
  const auto transform = [](const Tensors& t) { return Tensors{at::fft_rfft(t[0], {}, 1)}; };
  for (const Placement& placement : {Placement::shard(0), Placement::partial(), Placement::replicate()})
    EXPECT_EQ(bytes_received(transform, {{5, 6}}, {3}, {{placement}}), 0) << to_string(placement);
}

}  // namespace
}  // namespace shardwise::linalg_test
