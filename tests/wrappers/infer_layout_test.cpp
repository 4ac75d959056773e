#include "wrappers/infer_layout.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace shardwise::infer_layout_test {
namespace {

/// Ranks 0, 1, ... with these pieces.
std::vector<RankPieces> ranks_with(std::vector<std::vector<Box>> boxes) {
  std::vector<RankPieces> pieces;
  for (auto& each : boxes) {
    pieces.push_back({.rank = static_cast<int64_t>(pieces.size()), .boxes = std::move(each)});
    if (!pieces.back().boxes.empty()) pieces.back().piece_strides = {16, 1};
  }
  return pieces;
}

Box rows(int64_t begin, int64_t end) { return {{begin, 0}, {end - begin, 16}}; }
Box columns(int64_t begin, int64_t end) { return {{0, begin}, {8, end - begin}}; }

InferredLayout find(const std::vector<RankPieces>& pieces, const std::vector<Placement>& placements, Dims mesh = {}) {
  std::vector<int64_t> ranks;
  for (const RankPieces& each : pieces) ranks.push_back(each.rank);
  if (mesh.empty()) mesh = {static_cast<int64_t>(ranks.size())};
  return infer_layout(pieces, std::make_shared<const RankGrid>(RankGrid{mesh, ranks}), placements,
                      c10::DeviceType::CPU);
}

std::string text(const InferredLayout& inferred) { return to_string(inferred.layout.placements()); }

std::string error_of(const std::vector<RankPieces>& pieces, const std::vector<Placement>& placements, Dims mesh = {}) {
  try {
    find(pieces, placements, std::move(mesh));
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

void expect_words(const std::string& words, const std::string& error) {
  EXPECT_PRED_FORMAT2(testing::IsSubstring, words, error);
}

const Placement kShard0 = Placement::shard(0), kShard1 = Placement::shard(1), kWhole = Placement::replicate();

TEST(InferLayoutTest, SinglePiecesInMeshOrderAreAShardWithSizes) {
  const auto uneven = find(ranks_with({{rows(0, 1)}, {rows(1, 4)}, {rows(4, 5)}, {rows(5, 8)}}), {kShard0});
  EXPECT_EQ(text(uneven), "[Shard(0, sizes=[1, 3, 1, 3])]");
  EXPECT_EQ(uneven.layout.sizes().vec(), (std::vector<int64_t>{8, 16}));
  EXPECT_EQ(uneven.strides, (Dims{16, 1}));
  EXPECT_EQ(text(find(ranks_with({{rows(0, 4)}, {rows(4, 8)}}), {kShard0})), "[Shard(0)]");
  EXPECT_EQ(text(find(ranks_with({{rows(0, 3)}, {}, {rows(3, 8)}}), {kShard0})), "[Shard(0, sizes=[3, 0, 5])]");
  EXPECT_EQ(text(find(ranks_with({{columns(0, 9)}, {columns(9, 16)}}), {Placement::shard(-1)})),
            "[Shard(1, sizes=[9, 7])]");
}

TEST(InferLayoutTest, AnyOtherCoverIsAnEnumerableShard) {
  const auto reversed = ranks_with({{rows(4, 8)}, {rows(0, 4)}});
  EXPECT_EQ(text(find(reversed, {kShard0})),
            "[EnumerableShard([ShardMetadata(offsets=[4, 0], sizes=[4, 16], rank=0), "
            "ShardMetadata(offsets=[0, 0], sizes=[4, 16], rank=1)])]");
  const auto columns_under_rows = ranks_with({{columns(0, 9)}, {columns(9, 16)}});
  EXPECT_FALSE(find(columns_under_rows, {kShard0}).layout.has_one_box_each());
  const auto several = ranks_with({{columns(9, 12), columns(0, 5)}, {columns(5, 9), columns(12, 16)}, {}});
  const Layout layout = find(several, {kShard1}).layout;
  EXPECT_EQ(layout.boxes(0), (std::vector<Box>{columns(9, 12), columns(0, 5)}));  // in the order given
  EXPECT_TRUE(layout.boxes(2).empty());
  const auto grid = ranks_with({{{{0, 0}, {3, 10}}}, {{{0, 10}, {3, 6}}}, {{{3, 0}, {5, 10}}}, {{{3, 10}, {5, 6}}}});
  EXPECT_FALSE(find(grid, {kShard0}).layout.has_one_box_each());
}

TEST(InferLayoutTest, AnEmptyPieceInAnUnusualPlaceIsKept) {
  const Layout layout = find(ranks_with({{rows(0, 4)}, {rows(0, 0)}, {rows(4, 8)}}), {kShard0}).layout;
  EXPECT_EQ(layout.boxes(1), std::vector<Box>{rows(0, 0)});
}

TEST(InferLayoutTest, WholeTablesStayReplicated) {
  EXPECT_EQ(text(find(ranks_with({{rows(0, 8)}}), {kWhole})), "[Replicate()]");
  EXPECT_EQ(text(find(ranks_with({{rows(0, 8)}, {rows(0, 8)}}), {kWhole})), "[Replicate()]");
  EXPECT_FALSE(
      find(ranks_with({{columns(8, 16), columns(0, 8)}}), {kWhole}).layout.has_one_box_each());  // one rank, two pieces
}

TEST(InferLayoutTest, NDMeshesCutAndCopyAsTheirPlacementsSay) {
  const auto copied = ranks_with({{rows(0, 3)}, {rows(0, 3)}, {rows(3, 8)}, {rows(3, 8)}});
  EXPECT_EQ(text(find(copied, {kShard0, kWhole}, {2, 2})), "[Shard(0, sizes=[3, 5]), Replicate()]");
  const auto nested = ranks_with({{rows(0, 1)}, {rows(1, 3)}, {rows(3, 7)}, {rows(7, 8)}});
  EXPECT_EQ(text(find(nested, {kShard0, kShard0}, {2, 2})), "[Shard(0, sizes=[3, 5]), Shard(0, sizes=[1, 2, 4, 1])]");
  const auto grid = ranks_with({{{{0, 0}, {3, 10}}}, {{{0, 10}, {3, 6}}}, {{{3, 0}, {5, 10}}}, {{{3, 10}, {5, 6}}}});
  EXPECT_EQ(text(find(grid, {kShard0, kShard1}, {2, 2})), "[Shard(0, sizes=[3, 5]), Shard(1, sizes=[10, 6])]");
  expect_words("the pieces do not match [Shard(0), Replicate()] of shape [8, 16] on 2x2 ranks",
               error_of(ranks_with({{columns(0, 9)}, {columns(0, 9)}, {columns(9, 16)}, {columns(9, 16)}}),
                        {kShard0, kWhole}, {2, 2}));
}

TEST(InferLayoutTest, MisfitsNameTheBoxesAndTheirRanks) {
  expect_words("the pieces [0:4, 0:16] of rank 0 and [3:8, 0:16] of rank 1 overlap in [3:4, 0:16]",
               error_of(ranks_with({{rows(0, 4)}, {rows(3, 8)}}), {kShard0}));
  expect_words("leave a hole: [3:4, 0:16] of the tensor of shape [8, 16]",
               error_of(ranks_with({{rows(0, 3)}, {rows(4, 8)}}), {kShard0}));
  expect_words("rank 0 gives [0:4, 0:16], rank 1 gives [4:8, 0:16], but [Replicate()] makes them replicas",
               error_of(ranks_with({{rows(0, 4)}, {rows(4, 8)}}), {kWhole}));
  expect_words("no rank gives a piece", error_of(ranks_with({{}, {}}), {kShard0}));
  expect_words("do not match [Shard(0, sizes=[4, 4])]",
               error_of(ranks_with({{rows(0, 3)}, {rows(3, 8)}}), {Placement::shard(0, {4, 4})}));
  expect_words("2 placements", error_of(ranks_with({{rows(0, 8)}}), {kShard0, kShard0}));

  auto pieces = ranks_with({{rows(0, 4)}, {{{4, 16}, {4, 16}}}});  // the width where the column offset belongs
  for (RankPieces& each : pieces) each.shape = Dims{8, 16};
  expect_words("the piece [4:8, 16:32] of rank 1 reaches outside the tensor of shape [8, 16]",
               error_of(pieces, {kShard0}));
  pieces[1].shape = Dims{8, 32};
  expect_words("rank 0 gives shape= [8, 16] and stride= nothing, but rank 1 gives [8, 32]",
               error_of(pieces, {kShard0}));

  auto dtypes = ranks_with({{}, {rows(0, 4)}, {rows(4, 8)}});
  dtypes[0].dtype = c10::ScalarType::Half;  // has no pieces: follows
  EXPECT_EQ(find(dtypes, {kShard0}).dtype, c10::ScalarType::Float);
  dtypes[2].dtype = c10::ScalarType::Double;
  expect_words("rank 1 gives Float pieces, rank 2 Double", error_of(dtypes, {kShard0}));
}

TEST(InferLayoutTest, AnEnumerableShardMustNameThePieces) {
  const auto pieces = ranks_with({{rows(0, 3)}, {rows(3, 8)}});
  const auto named = Placement::enumerable({{{0, 0}, {3, 16}, 0}, {{3, 0}, {5, 16}, 1}});
  EXPECT_FALSE(find(pieces, {named}).layout.has_one_box_each());
  expect_words("do not match [EnumerableShard(", error_of(pieces, {Placement::enumerable({{{0, 0}, {8, 16}, 0}})}));
}

TEST(InferLayoutTest, StridesFollowThePiecesOrderInMemory) {
  auto pieces = ranks_with({{rows(0, 3)}, {rows(3, 8)}});
  for (RankPieces& each : pieces) each.piece_strides = {1, 8};
  EXPECT_EQ(find(pieces, {kShard0}).strides, (Dims{1, 8}));
  for (RankPieces& each : pieces) each.stride = Dims{16, 1};
  EXPECT_EQ(find(pieces, {kShard0}).strides, (Dims{16, 1}));
}

}  // namespace
}  // namespace shardwise::infer_layout_test
