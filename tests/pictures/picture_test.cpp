#include "pictures/picture.h"
#include "pictures/picture_formats.h"
#include "pictures/rank_table.h"

#include "tests/placements/layouts.h"
#include "text/rank_names.h"
#include "text/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace shardwise::picture_test {
namespace {

using P = Placement;

void expect_no_words(const std::string& text, const std::vector<std::string>& key_words) {
  for (const std::string& word : key_words) EXPECT_EQ(text.find(word), std::string::npos) << word << "\n  in: " << text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Characters, not bytes: those of UTF-8 that start one.
int64_t width(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

TEST(PictureTest, UnevenRowsStandAtTheirTrueCoordinates) {
  EXPECT_EQ(picture(Layout({8, 16}, grid({4}), {P::shard(0, {1, 3, 1, 3})})), R"(
[8, 16] as [Shard(0, sizes=[1, 3, 1, 3])] on 4 ranks (0-3), 512 bytes
    0                                                16
  0 ┌────────────────────────────────────────────────┐
    │                     rank 0                     │
    │                                                │
  1 ├────────────────────────────────────────────────┤
    │                                                │
    │                                                │
    │                     rank 1                     │
    │                                                │
    │                                                │
  4 ├────────────────────────────────────────────────┤
    │                     rank 2                     │
    │                                                │
  5 ├────────────────────────────────────────────────┤
    │                                                │
    │                                                │
    │                     rank 3                     │
    │                                                │
    │                                                │
  8 └────────────────────────────────────────────────┘
  rank  shape    offsets  bytes  share
     0  [1, 16]  [0, 0]      64  12.5%
     1  [3, 16]  [1, 0]     192  37.5%
     2  [1, 16]  [4, 0]      64  12.5%
     3  [3, 16]  [5, 0]     192  37.5%
  imbalance 1.50: ranks 1,3 hold 192 bytes, the mean is 128
)" + 1);
}

TEST(PictureTest, SeveralPiecesOfARankAreSeveralCellsAndASum) {
  const auto pieces =
      P::enumerable({{{0, 0}, {8, 4}, 1}, {{0, 4}, {3, 12}, 0}, {{3, 4}, {5, 6}, 2}, {{3, 10}, {5, 6}, 1}});
  EXPECT_EQ(picture(Layout({8, 16}, grid({3}), {pieces}), {.element_bytes = 2}), R"(
[8, 16] as EnumerableShard of 4 pieces on 3 ranks (0-2), 256 bytes
    0            4                  10                 16
  0 ┌────────────┬─────────────────────────────────────┐
    │            │                                     │
    │            │               rank 0                │
    │            │                                     │
  3 │            ├──────────────────┬──────────────────┤
    │   rank 1   │                  │                  │
    │            │                  │                  │
    │            │      rank 2      │      rank 1      │
    │            │                  │                  │
    │            │                  │                  │
    │            │                  │                  │
  8 └────────────┴──────────────────┴──────────────────┘
  rank  shape     offsets  bytes  share
     0  [3, 12]   [0, 4]      72  28.1%
     1  [8, 4]    [0, 0]      64  25.0%
        [5, 6]    [3, 10]     60  23.4%
        2 pieces             124  48.4%
     2  [5, 6]    [3, 4]      60  23.4%
  imbalance 1.45: rank 1 holds 124 bytes, the mean is 85
)" + 1);
}

TEST(PictureTest, EmptyShardHasNoCellButALine) {
  EXPECT_EQ(picture(Layout({2}, grid({3}), {P::shard(0)})), R"(
[2] as [Shard(0)] on 3 ranks (0-2), 8 bytes
  0                        1                        2
  ┌────────────────────────┬────────────────────────┐
  │                        │                        │
  │         rank 0         │         rank 1         │
  │                        │                        │
  └────────────────────────┴────────────────────────┘
  rank  shape  offsets  bytes  share
     0  [1]    [0]          4  50.0%
     1  [1]    [1]          4  50.0%
     2  [0]    [2]          0   0.0%
  imbalance 1.50: ranks 0,1 hold 4 bytes, the mean is 2.7
)" + 1);
}

TEST(PictureTest, TensorWithoutElementsHasATableOnly) {
  const std::string text = picture(Layout({0, 5}, grid({2}), {P::shard(0)}));
  expect_words(text, {"no elements", "[0, 5]", "imbalance 1.00: every rank holds 0 bytes"});
  expect_no_words(text, {"┌", "nan"});
}

TEST(PictureTest, PartialIsShownAsPartialAndReplicasShareACell) {
  expect_words(picture(Layout({}, grid({4}), {P::partial(Reduce::kMax)})), {"│", "ranks 0-3 partial(max)", "100.0%"});
  const std::string text = picture(Layout({8, 16}, grid({2, 2}), {P::shard(0), P::partial()}));
  expect_words(text, {"ranks 0,1 partial(sum)", "ranks 2,3 partial(sum)"});
  const std::string copied = picture(Layout({8, 16}, grid({4}), {P()}));
  expect_words(copied, {"ranks 0-3", "100.0%", "imbalance 1.00: every rank holds 512 bytes"});
  expect_no_words(copied, {"partial"});
}

TEST(PictureTest, SubmeshShowsItsRanksInTheOrderOfTheMesh) {
  const std::string text = picture(Layout({8, 16}, grid({2}, {3, 1}), {P::shard(1)}));
  expect_words(text, {"2 ranks (1,3)", "     3  [8, 8]  [0, 0]", "     1  [8, 8]  [0, 8]"});
  EXPECT_LT(text.find("rank 3"), text.find("rank 1"));
  expect_words(picture(Layout({8, 16}, grid({1}, {2}), {P()})),
               {"rank 2", "1 rank (2)", "the only rank holds 512 bytes"});
}

TEST(PictureTest, NestedShardsAreDrawnAsTheyNest) {
  const auto lines = lines_of(picture(Layout({11, 5}, grid({2, 3}), {P::shard(0), P::shard(0)})));
  std::vector<std::string> lines_at;
  for (const std::string& line : lines) {
    if (line.find("─") != std::string::npos) lines_at.push_back(line.substr(0, 4));
  }
  EXPECT_EQ(lines_at, (std::vector<std::string>{"   0", "   2", "   4", "   6", "   8", "  10", "  11"}));
}

TEST(PictureTest, SixtyFourCellsInAGridAreAllNamedWithinTheWidth) {
  const std::string text = picture(Layout({64, 64}, grid({8, 8}), {P::shard(0), P::shard(1)}));
  for (int rank = 0; rank < 64; ++rank) expect_words(text, {"rank " + std::to_string(rank) + " "});
  for (const std::string& line : lines_of(text)) EXPECT_LE(width(line), 100) << line;
  expect_words(text, {"... 36 more ranks of 256 bytes each"});
}

TEST(PictureTest, ManyRowsAndColumnsLeaveOutTheMiddleAndSaySo) {
  expect_words(picture(Layout({6400, 64}, grid({64}), {P::shard(0)})),
               {"rank 0", "rank 63", "⋮", "rows [800, 5700) left out: 49 of 64 segments", "   800 ", "  5700 "});
  for (const int64_t max_width : {40, 100}) {
    const std::string text = picture(Layout({64, 6400}, grid({64}), {P::shard(1)}), {.max_width = max_width});
    expect_words(text, {"│ 0  │", "│ 63 │", "⋯", "of 64 segments", "the numbers in the cells are ranks"});
    const auto lines = lines_of(text);
    for (size_t i = 1; i < 8; ++i) EXPECT_LE(width(lines[i]), max_width) << lines[i];
  }
}

TEST(PictureTest, ThousandsOfPiecesStayReadable) {
  std::vector<ShardMetadata> pieces;
  for (int64_t i = 0; i < 60; ++i) {
    for (int64_t j = 0; j < 60; ++j) pieces.push_back({{i * 2, j * 3}, {2, 3}, (i + j) % 4});
  }
  const std::string text = picture(Layout({120, 180}, grid({4}), {P::enumerable(pieces)}));
  EXPECT_LT(lines_of(text).size(), 100u);
  expect_words(text, {"... 894 more", "900 pieces", "left out", "every rank holds 21,600 bytes"});
}

TEST(PictureTest, ManyExplicitSizesAreShortenedInTheTitle) {
  std::vector<int64_t> sizes(64, 10);
  sizes[0] = 5;
  const auto lines = lines_of(picture(Layout({635, 4}, grid({64}), {P::shard(0, sizes)})));
  EXPECT_EQ(width(lines[0]), 100);
  expect_words(lines[0], {"[635, 4] as [Shard(0, sizes=[5, 10, 10", "... on 64 ranks (0-63), 10,160 bytes"});
}

std::string without_colors(std::string text) {
  for (size_t at = text.find('\x1b'); at != std::string::npos; at = text.find('\x1b'))
    text.erase(at, text.find('m', at) + 1 - at);
  return text;
}

TEST(PictureTest, ColorsAddNothingButColors) {
  const Layout layout({11, 5}, grid({2, 3}), {P::shard(0), P::shard(1)});
  const std::string colored = picture(layout, {.color = true});
  EXPECT_EQ(without_colors(colored), picture(layout));
  for (int64_t rank = 0; rank < 6; ++rank) expect_words(colored, {detail::background(rank)});
  expect_no_words(picture(layout), {"\x1b"});
}

TEST(PictureTest, CellOfReplicasHasAStripePerRank) {
  const std::string colored = picture(Layout({4, 4}, grid({2}), {P()}), {.color = true});
  const std::string line = lines_of(colored)[3];  // above the name: stripes only
  expect_words(line, {detail::background(0) + std::string(24, ' ') + detail::kPlain + detail::background(1) +
                      std::string(24, ' ')});
}

TEST(PictureTest, ThreeDimsAreSlicesOfTheLastTwo) {
  EXPECT_EQ(picture(Layout({5, 4, 6}, grid({2}), {P::shard(0)})), R"(
[5, 4, 6] as [Shard(0)] on 2 ranks (0,1), 480 bytes
  [0:3]
    0                                                6
  0 ┌────────────────────────────────────────────────┐
    │                                                │
    │                                                │
    │                     rank 0                     │
    │                                                │
    │                                                │
  4 └────────────────────────────────────────────────┘
  [3:5]
    0                                                6
  0 ┌────────────────────────────────────────────────┐
    │                                                │
    │                                                │
    │                     rank 1                     │
    │                                                │
    │                                                │
  4 └────────────────────────────────────────────────┘
  rank  shape      offsets    bytes  share
     0  [3, 4, 6]  [0, 0, 0]    288  60.0%
     1  [2, 4, 6]  [3, 0, 0]    192  40.0%
  imbalance 1.20: rank 0 holds 288 bytes, the mean is 240
)" + 1);
}

/// "[0:3] 0 1 | [3:5] 2": each slice, and the ranks of its cells.
std::string slices_in_words(const Layout& layout, int64_t max_slices = 256) {
  std::string words;
  for (const Slice& slice : tensor_figure(layout, 4, {}, max_slices).slices) {
    words += (words.empty() ? "" : " | ") + heading(slice, layout.sizes());
    if (slice.cells.empty()) words += " without " + std::to_string(slice.n_left_out);
    for (const FigureCell& cell : slice.cells) words += " " + detail::rank_list(cell.ranks);
  }
  return words;
}

TEST(SlicesTest, StandWhereTheBoxesChange) {
  // layout, slices
  EXPECT_EQ(slices_in_words(Layout({}, grid({2}), {P()})), "[] 0,1");
  EXPECT_EQ(slices_in_words(Layout({4, 6, 5}, grid({2}), {P::shard(1)})), "[:] 0 1");
  EXPECT_EQ(slices_in_words(Layout({4, 6, 5}, grid({2, 2}), {P::shard(0), P::shard(2)})), "[0:2] 0 1 | [2:4] 2 3");
  EXPECT_EQ(slices_in_words(Layout({1, 6, 5}, grid({3}), {P::shard(0)})), "[:] 0");  // two hold nothing
  EXPECT_EQ(slices_in_words(Layout({3, 2, 4, 4}, grid({2, 2}), {P::shard(0), P::shard(1)})),
            "[0:2, 0] 0 | [0:2, 1] 1 | [2, 0] 2 | [2, 1] 3");
  EXPECT_EQ(slices_in_words(Layout({7, 2, 4}, grid({2, 2}), {P::shard(0), P::shard(0)})),
            "[0:2] 0 | [2:4] 1 | [4:6] 2 | [6] 3");
  EXPECT_EQ(slices_in_words(Layout({0, 2, 4}, grid({2}), {P::shard(0)})), "");
  EXPECT_EQ(slices_in_words(Layout({4, 2, 2, 2, 2}, grid({2}, {5, 3}), {P::shard(0, {1, 3})})),
            "[0, :, :] 5 | [1:4, :, :] 3");
}

TEST(SlicesTest, RangesThatShowTheSameBoxesAreOneSlice) {
  // A box of rank 0 spans dim 0 at index 0 of dim 1; the rest of dim 1 is split along dim 0.
  const auto pieces = P::enumerable(
      {{{0, 0, 0, 0}, {4, 1, 2, 2}, 0}, {{0, 1, 0, 0}, {2, 2, 2, 2}, 1}, {{2, 1, 0, 0}, {2, 2, 2, 2}, 2}});
  EXPECT_EQ(slices_in_words(Layout({4, 3, 2, 2}, grid({3}), {pieces})), "[:, 0] 0 | [0:2, 1:3] 1 | [2:4, 1:3] 2");
  // The same box on both sides of others: its places are not neighbours.
  const auto around = P::enumerable({{{0, 0, 0}, {3, 1, 4}, 0}, {{0, 1, 0}, {1, 1, 4}, 1}, {{1, 1, 0}, {2, 1, 4}, 2}});
  EXPECT_EQ(slices_in_words(Layout({3, 2, 4}, grid({3}), {around})), "[0] 0 1 | [1:3] 0 2");
}

TEST(SlicesTest, OfManyTheMiddleIsLeftOut) {
  const Layout layout({100, 4, 4}, grid({100}), {P::shard(0)});
  EXPECT_EQ(slices_in_words(layout, 4), "[0] 0 | [1] 1 | [2:99] without 97 | [99] 99");
  expect_words(picture(layout), {"  [2]\n", "... slices from [3] to [98] left out", "  [99]\n", "rank 99 "});
  const std::string text = picture(Layout({1000, 4, 4}, grid({1000}), {P::shard(0)}));
  expect_words(text, {"  [999]\n", "from [3] to [998]"});
}

TEST(PictureTest, APartialTensorIsAStackOfItsTerms) {
  EXPECT_EQ(picture(Layout({2, 2}, grid({3}), {P::partial()})), R"(
[2, 2] as [Partial(sum)] on 3 ranks (0-2), 16 bytes
    0                                                2
  0 ┌────────────────────────────────────────────────┐
    │                                                │┐
    │                                                ││┐
    │             ranks 0-2 partial(sum)             │││
    │                                                │││
    │                                                │││
  2 └────────────────────────────────────────────────┘││
     └────────────────────────────────────────────────┘│
      └────────────────────────────────────────────────┘
  a stack of 3 terms: their sum is the tensor
  rank  shape   offsets  bytes   share
     0  [2, 2]  [0, 0]      16  100.0%
     1  [2, 2]  [0, 0]      16  100.0%
     2  [2, 2]  [0, 0]      16  100.0%
  imbalance 1.00: every rank holds 16 bytes
)" + 1);
}

TEST(PictureTest, TheRanksOfEachTermAreKnown) {
  const TensorFigure figure = tensor_figure(Layout({4}, grid({2, 3}), {P(), P::partial()}), 4);
  EXPECT_EQ(figure.n_terms, 3);
  using Ranks = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(figure.slices.at(0).cells.at(0).terms, (Ranks{{0, 3}, {1, 4}, {2, 5}}));
}

TEST(PictureTest, ReductionsOfSeveralKindsHaveAnOrder) {
  // placements, what is said
  const auto note = [](const std::vector<P>& placements) {
    return note_on_terms(tensor_figure(Layout({4}, grid({2, 2, 2}), placements), 4));
  };
  const P sum = P::partial(), max = P::partial(Reduce::kMax);
  EXPECT_EQ(note({sum, P(), sum}), "a stack of 4 terms: their sum is the tensor");
  EXPECT_EQ(note({sum, max, max}),
            "a stack of 8 terms: their sum of max is the tensor; the last mesh dim is reduced first");
  EXPECT_EQ(note({max, sum, max}),
            "a stack of 8 terms: their max of sum of max is the tensor; the last mesh dim is reduced first");
}

TEST(PictureTest, NamesOfMeshDimsStandInTheFirstLine) {
  const Layout layout({10, 7}, grid({2, 2}), {P::shard(0), P::shard(1)});
  EXPECT_EQ(lines_of(draw(picture_of(layout, 4, {"dp", "tp"})))[0],
            "[10, 7] as [Shard(0), Shard(1)] on (dp=2, tp=2), 280 bytes");
  EXPECT_EQ(lines_of(draw(picture_of(layout, 4)))[0], "[10, 7] as [Shard(0), Shard(1)] on 2x2 ranks (0-3), 280 bytes");
}

TEST(PictureTest, AMeshIsItsRanksInTheirPlaces) {
  EXPECT_EQ(draw(picture_of(RankGrid{{2, 3}, {5, 4, 3, 2, 1, 0}}, {"dp", "tp"})), R"(
mesh of 2x3 ranks (dp=2, tp=3)
        tp 0  tp 1  tp 2
  dp 0     5     4     3
  dp 1     2     1     0
)" + 1);
  EXPECT_EQ(draw(picture_of(*grid({2, 1, 2}))), R"(
mesh of 2x1x2 ranks
  dim 0 0
           dim 2 0  dim 2 1
  dim 1 0        0        1
  dim 0 1
           dim 2 0  dim 2 1
  dim 1 0        2        3
)" + 1);
  EXPECT_EQ(draw(picture_of(*grid({1}))), R"(
mesh of 1 rank
    dim 0 0
          0
)" + 1);
  const std::string large = draw(picture_of(*grid({100, 100})));
  EXPECT_LT(lines_of(large).size(), 20U);
  expect_words(large, {"dim 0 99", "9999", "..."});
  for (const std::string& line : lines_of(large)) EXPECT_LE(width(line), 100) << line;
}

TEST(PictureTest, AMeshWithTheWrongNumberOfNamesIsRefused) {
  expect_words(message_of<c10::ValueError>([] { picture_of(*grid({2, 3}), {"dp"}); }),
               {"[picture] 1 names for a mesh of 2 dims"});
}

/// Of the table it knows these shards alone: nothing stands where others may be.
TEST(PictureTest, LocalShardsStandAtTheirTrueCoordinates) {
  const LocalShards shards{2, {{{6, 0}, {1, 4}}, {{0, 0}, {2, 4}}}};
  EXPECT_EQ(draw(picture_of(shards, 4), {.max_width = 60}), R"(
LocalShardsWrapper of 2 shards on rank 2, 48 bytes
    0                                                4
  0 ┌────────────────────────────────────────────────┐
    │                                                │
    │                     rank 2                     │
    │                                                │
  2 └────────────────────────────────────────────────┘







  6 ┌────────────────────────────────────────────────┐
    │                     rank 2                     │
    │                                                │
  7 └────────────────────────────────────────────────┘
  rank  shape     offsets  bytes  share
     2  [1, 4]    [6, 0]      16      -
        [2, 4]    [0, 0]      32      -
        2 pieces              48      -
  the other ranks' shards are not known here: DTensor.from_local(wrapper, mesh, placements) joins them
)" + 1);
  expect_no_words(draw(picture_of(shards, 4), {.format = "svg"}), {"of the tensor", "imbalance"});
  expect_words(draw(picture_of(LocalShards{0, {}}, 4)),
               {"LocalShardsWrapper of 0 shards on rank 0, 0 bytes", "no piece"});
  const LocalShards cube{1, {{{4, 0, 0}, {1, 2, 2}}, {{0, 3, 3}, {1, 2, 2}}}};  // no shard has index 1 of the first dim
  EXPECT_EQ(tensor_figure(cube, 4).slices.size(), 2U);
  for (const auto& format : detail::kPictureFormats) format.draw(picture_of(cube, 4), {});
}

TEST(PictureTest, AnUnknownFormatIsRefusedWithTheKnownOnes) {
  expect_words(message_of<c10::ValueError>([] { picture(Layout({2}, grid({2}), {P()}), {.format = "png"}); }),
               {"[picture] format 'png' is unknown", "Use one of text, svg, "});
}

TEST(PictureTest, TheFigureHasCellsGridLinesAndShares) {
  const auto pieces = P::enumerable({{{0, 0}, {8, 4}, 1}, {{0, 4}, {3, 12}, 0}, {{3, 4}, {5, 12}, 1}});
  const TensorFigure figure = tensor_figure(Layout({8, 16}, grid({2}), {pieces}), 2);
  ASSERT_EQ(figure.slices.size(), 1U);
  const Slice& uneven = figure.slices[0];
  EXPECT_EQ(uneven.rows, (std::vector<Interval>{{0, 3}, {3, 8}}));
  EXPECT_EQ(uneven.columns, (std::vector<Interval>{{0, 4}, {4, 16}}));
  ASSERT_EQ(uneven.cells.size(), 3U);
  EXPECT_EQ(uneven.cells[1].rows, (Interval{0, 8}));
  EXPECT_EQ(uneven.cells[1].columns, (Interval{0, 4}));
  EXPECT_EQ(uneven.cells[1].ranks, (std::vector<int64_t>{1}));
  EXPECT_EQ(figure.shares[0].n_bytes, 3 * 12 * 2);
  EXPECT_EQ(figure.shares[1].boxes.size(), 2U);

  const TensorFigure sum = tensor_figure(Layout({4}, grid({2, 2}), {P::shard(0), P::partial()}), 4);
  EXPECT_EQ(sum.reductions, "sum");
  EXPECT_EQ(sum.slices[0].rows, (std::vector<Interval>{{0, 1}}));  // a dim that the tensor lacks
  EXPECT_EQ(sum.slices[0].columns, (std::vector<Interval>{{0, 2}, {2, 4}}));
  EXPECT_EQ(sum.slices[0].cells[1].ranks, (std::vector<int64_t>{2, 3}));

  const TensorFigure nothing = tensor_figure(Layout({0, 5}, grid({2}), {P::shard(0)}), 4);
  EXPECT_TRUE(nothing.slices.empty());
  EXPECT_EQ(nothing.shares.size(), 2U);
}

TEST(TextTableTest, ColumnsAreAsWideAsTheirWidestWord) {
  detail::TextTable table({{"op"}, {"bytes", detail::Align::kRight}, {"note"}}, 1);
  table.add({"add", "1,024", ""});
  table.add({"…mk", "7", "first"}, "\x1b[1m");
  table.add_note("and 2 more");
  EXPECT_EQ(table.to_string(),
            " op   bytes  note\n"
            " add  1,024\n"
            " \x1b[1m…mk\x1b[0m      7  first\n"
            "      and 2 more\n");
}

TEST(TextTableTest, WideCharactersTakeTwoColumnsAndMarksNone) {
  // text, columns
  const std::vector<std::pair<std::string, size_t>> cases = {
      {"", 0}, {"é", 1}, {"e\u0301", 1}, {"…─", 2}, {"表", 2}, {"표a", 3}, {"ｶ", 1}, {"🚀", 2}, {"\xe8\xa1", 1}};
  for (const auto& [text, columns] : cases) EXPECT_EQ(detail::width_of(text), columns) << text;
  detail::TextTable table({{"tensor"}, {"bytes", detail::Align::kRight}});
  table.add({"表.weight", "7"});
  table.add({"a\nb\x1b[1m", "8"});
  EXPECT_EQ(table.to_string(),
            "tensor     bytes\n"
            "表.weight      7\n"
            "a?b?[1m        8\n");
}

TEST(TextTableTest, NumbersHaveCommasEveryThreeDigits) {
  // number, text
  EXPECT_EQ(detail::with_commas(0), "0");
  EXPECT_EQ(detail::with_commas(999), "999");
  EXPECT_EQ(detail::with_commas(1000), "1,000");
  EXPECT_EQ(detail::with_commas(46881792), "46,881,792");
}

TEST(RankTableTest, SmallFiguresAreNotZero) {
  // bytes, of, share
  EXPECT_EQ(detail::share_of(3, 8), "37.5%");
  EXPECT_EQ(detail::share_of(1, 1000), "0.1%");
  EXPECT_EQ(detail::share_of(4, 30000), "0.013%");
  EXPECT_EQ(detail::share_of(0, 8), "0.0%");
  EXPECT_EQ(detail::share_of(0, 0), "-");
  // ranks and their bytes, imbalance
  EXPECT_EQ(detail::imbalance_of({{0, 4}, {1, 0}, {2, 0}}), "imbalance 3.00: rank 0 holds 4 bytes, the mean is 1.3");
  EXPECT_EQ(detail::imbalance_of({{0, 64}, {1, 65}}), "imbalance 1.01: rank 1 holds 65 bytes, the mean is 65");
}

TEST(RankNamesTest, ListsStayShort) {
  // ranks, list
  EXPECT_EQ(detail::rank_list({5}), "5");
  EXPECT_EQ(detail::rank_list({1, 0}), "0,1");
  EXPECT_EQ(detail::rank_list({3, 0, 2, 1}), "0-3");
  EXPECT_EQ(detail::rank_list({0, 2}), "0,2");
  EXPECT_EQ(detail::rank_list({0, 1, 2, 8, 9, 10}), "0-2,8-10");
  EXPECT_EQ(detail::rank_list({0, 8, 16, 24, 32}), "0,8,..,32");
  EXPECT_EQ(detail::rank_list({0, 2, 5, 7, 11}), "0,2,5,7,11");  // no longer than with "(5 ranks)"
  EXPECT_EQ(detail::rank_list({9, 1, 7, 3}), "1,3,7,9");
  EXPECT_EQ(detail::rank_list({0, 2, 5, 7, 11, 13, 17, 19}), "0,2,5,.. (8 ranks)");
}

}  // namespace
}  // namespace shardwise::picture_test
