#include "wrappers/local_shards_wrapper.h"

#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::local_shards_wrapper_test {
namespace {

at::Tensor numbers(at::IntArrayRef sizes) { return at::arange(Box::whole(sizes).numel(), at::kDouble).view(sizes); }

/// Rows [0, 2) and [5, 8) of an 8x4 table.
at::Tensor two_rows() { return make_local_shards({numbers({2, 4}), numbers({3, 4}) + 100}, {{0, 0}, {5, 0}}); }

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

void expect_pieces(const at::Tensor& wrapper, const std::vector<at::Tensor>& expected) {
  ASSERT_TRUE(is_local_shards(wrapper));
  const auto pieces = local_shards(wrapper);
  ASSERT_EQ(pieces.size(), expected.size());
  for (size_t i = 0; i < pieces.size(); ++i) EXPECT_TRUE(at::equal(pieces[i], expected[i])) << "piece " << i;
}

TEST(LocalShardsWrapperTest, T1PiecesSizesAndOffsetsAreThoseGiven) {
  const at::Tensor a = numbers({2, 4}), b = numbers({3, 4});
  const at::Tensor wrapper = make_local_shards({a, b}, {{0, 0}, {5, 0}});
  EXPECT_EQ(local_shards(wrapper)[1].data_ptr(), b.data_ptr());
  EXPECT_EQ(local_sizes(wrapper), (std::vector<Dims>{{2, 4}, {3, 4}}));
  EXPECT_EQ(local_offsets(wrapper), (std::vector<Dims>{{0, 0}, {5, 0}}));
  EXPECT_EQ(wrapper.scalar_type(), at::kDouble);
}

TEST(LocalShardsWrapperTest, ItsOwnSizesCloseTheGapsBetweenPieces) {
  const auto sizes = [](std::vector<std::pair<Dims, Dims>> pieces) {
    std::vector<at::Tensor> shards;
    std::vector<Dims> offsets;
    for (const auto& [offset, size] : pieces) {
      shards.push_back(at::zeros(size));
      offsets.push_back(offset);
    }
    return make_local_shards(shards, offsets).sizes().vec();
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(sizes({}), (Sizes{0, 0}));
  EXPECT_EQ(sizes({{{2, 0}, {2, 16}}}), (Sizes{2, 16}));
  EXPECT_EQ(sizes({{{0, 0}, {2, 16}}, {{6, 0}, {1, 16}}}), (Sizes{3, 16}));  // rows
  EXPECT_EQ(sizes({{{0, 9}, {8, 3}}, {{0, 0}, {8, 5}}}), (Sizes{8, 8}));     // columns, in any order
  EXPECT_EQ(sizes({{{3}, {4}}, {{10}, {2}}}), (Sizes{6}));                   // 1-D
  EXPECT_EQ(sizes({{{0, 0}, {2, 3}}, {{0, 5}, {2, 1}}, {{4, 0}, {1, 3}}, {{4, 5}, {1, 1}}}), (Sizes{3, 4}));  // a grid
  EXPECT_EQ(sizes({{{0, 0}, {2, 3}}, {{4, 5}, {1, 1}}}), (Sizes{7, 1}));  // two cells: their elements
  EXPECT_EQ(sizes({{{8, 0}, {0, 16}}}), (Sizes{0, 16}));
}

TEST(LocalShardsWrapperTest, MisfitsAreNamed) {
  const at::Tensor piece = at::zeros({2, 4});
  expect_error("got 1 local_shards and 2 offsets", error_of([&] { make_local_shards({piece}, {{0, 0}, {2, 0}}); }));
  expect_error("offsets[0] [0] has 1 entries", error_of([&] { make_local_shards({piece}, {{0}}); }));
  expect_error("hold a negative number", error_of([&] { make_local_shards({piece}, {{0, -4}}); }));
  expect_error("overlap in [1:2, 0:4]", error_of([&] { make_local_shards({piece, piece}, {{0, 0}, {1, 0}}); }));
  expect_error("local_shards[1] is Double",
               error_of([&] { make_local_shards({piece, piece.to(at::kDouble)}, {{0, 0}, {2, 0}}); }));
  expect_error("has no dims", error_of([&] { make_local_shards({at::zeros({})}, {{}}); }));
  EXPECT_THROW(make_local_shards({two_rows()}, {{0, 0}}), c10::TypeError);
  EXPECT_THROW(local_shards(piece), c10::TypeError);
}

TEST(LocalShardsWrapperTest, T2OperatorsRunOnEachPiece) {
  const at::Tensor wrapper = two_rows();
  const at::Tensor a = local_shards(wrapper)[0], b = local_shards(wrapper)[1];
  expect_pieces(wrapper * 2 + wrapper, {a * 3, b * 3});
  expect_pieces(at::relu(wrapper - at::scalar_tensor(101.0, at::kDouble)), {at::relu(a - 101), at::relu(b - 101)});
  expect_pieces(wrapper > 3, {a > 3, b > 3});
  expect_pieces(wrapper.to(at::kFloat), {a.to(at::kFloat), b.to(at::kFloat)});
  expect_pieces(at::where(wrapper > 3, wrapper, at::zeros_like(wrapper)),
                {at::where(a > 3, a, 0), at::where(b > 3, b, 0)});
  expect_pieces(wrapper.clone(), {a, b});
  EXPECT_EQ(local_offsets(wrapper * 2), local_offsets(wrapper));
}

TEST(LocalShardsWrapperTest, T2WritesReachThePieces) {
  const at::Tensor wrapper = two_rows();
  const at::Tensor a = local_shards(wrapper)[0], b = local_shards(wrapper)[1];
  EXPECT_TRUE(wrapper.add_(1).is_same(wrapper));
  EXPECT_EQ(a[0][0].item<double>(), 1);
  EXPECT_EQ(b[0][0].item<double>(), 101);
  wrapper.copy_(wrapper * 2);
  EXPECT_EQ(b[0][0].item<double>(), 202);
  wrapper.zero_();
  EXPECT_EQ(a.sum().item<double>() + b.sum().item<double>(), 0);
  const at::Tensor alias = wrapper.detach();
  alias.fill_(7);
  EXPECT_EQ(a.sum().item<double>(), 56);
}

TEST(LocalShardsWrapperTest, T2EqualComparesValuesAndPlaces) {
  const at::Tensor wrapper = two_rows();
  EXPECT_TRUE(at::equal(wrapper, wrapper.clone()));
  EXPECT_FALSE(at::equal(wrapper, wrapper + 1));
  EXPECT_FALSE(at::equal(wrapper, make_local_shards(local_shards(wrapper), {{0, 0}, {4, 0}})));
}

TEST(LocalShardsWrapperTest, T2ViewsThatKeepTheCutAreViews) {
  const at::Tensor wrapper = two_rows();
  const at::Tensor view = wrapper.view({5, 4});
  EXPECT_EQ(local_shards(view)[1].data_ptr(), local_shards(wrapper)[1].data_ptr());
  expect_error("size [4, 5] is not the wrapper's [5, 4]", error_of([&] { wrapper.view({4, 5}); }));
}

TEST(LocalShardsWrapperTest, T2ListsGoPieceByPiece) {
  const at::Tensor wrapper = two_rows(), plain = at::ones({3}, at::kDouble);
  at::_foreach_add_({wrapper, plain}, 1);
  EXPECT_EQ(local_shards(wrapper)[1][0][0].item<double>(), 101);
  EXPECT_EQ(plain[0].item<double>(), 2);
  at::_foreach_mul_({wrapper, plain}, std::vector<at::Scalar>{2, 3});
  EXPECT_EQ(local_shards(wrapper)[0][0][0].item<double>(), 2);
  EXPECT_EQ(plain[0].item<double>(), 6);
  const auto sums = at::_foreach_add({wrapper, plain}, {wrapper, plain});
  EXPECT_EQ(local_shards(sums[0])[0][0][0].item<double>(), 4);
  EXPECT_EQ(sums[1][0].item<double>(), 12);
}

TEST(LocalShardsWrapperTest, WithoutPiecesResultsHaveTheRightDtype) {
  const at::Tensor none = make_local_shards({}, {}, at::kDouble);
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ((none > 0).scalar_type(), at::kBool);
  EXPECT_EQ((none * 2).scalar_type(), at::kDouble);
  EXPECT_TRUE(local_shards(none.add_(1)).empty());
  at::_foreach_add_({none}, 1);
}

TEST(LocalShardsWrapperTest, T2OtherOperatorsSayWhatTheyNeed) {
  const at::Tensor wrapper = two_rows();
  expect_error("[aten::sum] needs more than one piece at a time", error_of([&] { wrapper.sum(); }));
  expect_error("[aten::_softmax] needs more than one piece", error_of([&] { at::softmax(wrapper, 1); }));
  expect_error("[aten::mm] needs more than one piece", error_of([&] { wrapper.mm(at::zeros({4, 2}, at::kDouble)); }));
  expect_error("[aten::add.Tensor] got a torch.Tensor of shape [5, 4] next to a LocalShardsWrapper",
               error_of([&] { wrapper + at::zeros({5, 4}); }));
  const at::Tensor elsewhere = make_local_shards(local_shards(wrapper), {{0, 0}, {4, 0}});
  expect_error("have different offsets: [[0, 0], [5, 0]] and [[0, 0], [4, 0]]", error_of([&] { wrapper + elsewhere; }));
}

TEST(LocalShardsWrapperTest, GradientsOfWrappersAreWrappersAndReachPieces) {
  const at::Tensor wrapper = two_rows().requires_grad_();
  const at::Tensor out = wrapper * wrapper;
  out.backward(at::ones_like(out));
  expect_pieces(wrapper.grad(), {local_shards(wrapper.detach())[0] * 2, local_shards(wrapper.detach())[1] * 2});

  const at::Tensor piece = numbers({2, 4}).requires_grad_();
  const at::Tensor of_piece = make_local_shards({piece}, {{0, 0}});
  (local_shards(of_piece * 3)[0] * 2).sum().backward();
  EXPECT_TRUE(at::equal(piece.grad(), at::full({2, 4}, 6.0, at::kDouble)));
}

}  // namespace
}  // namespace shardwise::local_shards_wrapper_test
