#include "pictures/picture.h"
#include "pictures/picture_formats.h"
#include "pictures/svg_writer.h"

#include "tests/placements/layouts.h"

#include <nlohmann/json.hpp>

#include <chrono>

namespace shardwise::formats_test {
namespace {

using P = Placement;
using nlohmann::json;

size_t count(const std::string& text, const std::string& word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++n;
  return n;
}

json page_of(const Picture& picture) { return json::parse(draw(picture, {.format = "page"})); }
json values_of(const Picture& picture) { return json::parse(draw(picture, {.format = "json"})); }

TEST(SvgWriterTest, TextIsEscaped) {
  EXPECT_EQ(detail::escaped("a<b & \"c\">d"), "a&lt;b &amp; &quot;c&quot;&gt;d");
  EXPECT_EQ(detail::escaped("\x1b[1m é\n"), "?[1m é\n");
  const std::string drawn = draw(picture_of(RankGrid{{2}, {0, 1}}, {"<dp>"}), {.format = "svg"});
  expect_words(drawn, {"&lt;dp&gt;=2"});
  EXPECT_EQ(count(drawn, "<dp>"), 0U);
}

TEST(SvgWriterTest, WidthsCountCharactersNotBytes) {
  EXPECT_EQ(detail::text_width("⋯⋮"), detail::text_width("ab"));
  EXPECT_EQ(detail::text_width(""), 0);
  EXPECT_EQ(detail::text_width("表の"), detail::text_width("abcd"));
}

TEST(SvgPictureTest, CellsTellRanksOffsetsShapeAndBytes) {
  const std::string drawn = picture(Layout({10, 7}, grid({2, 2}), {P::shard(0), P::shard(1)}), {.format = "svg"});
  expect_words(
      drawn,
      {"viewBox=", "prefers-color-scheme:dark",
       "data-ranks=\"3\"><title>rank: 3\noffsets: [5, 4]\nshape: [5, 3]\nbytes: 60\nshare: 21.4% of the tensor</title>",
       ">rank 3</text>", "place: dim 0 1, dim 1 1"});
}

TEST(SvgPictureTest, APartialCellIsAStackWithItsTerms) {
  const std::string drawn = picture(Layout({8, 16}, grid({3}), {P::partial()}), {.format = "svg"});
  expect_words(drawn, {"partial: sum of 3 terms\nterm 1: rank 0\nterm 2: rank 1\nterm 3: rank 2", ">partial(sum)<",
                       "a stack of 3 terms"});
  const std::string cell =
      drawn.substr(drawn.find("sw-cell"), drawn.find("</g>", drawn.find("sw-cell")) - drawn.find("sw-cell"));
  EXPECT_EQ(count(cell, "<rect"), 3U);
}

TEST(SvgPictureTest, ReplicasAreStripes) {
  const std::string drawn = picture(Layout({6}, grid({3}), {P()}), {.format = "svg"});
  expect_words(drawn, {"data-ranks=\"0-2\"", "copies: 3"});
  EXPECT_EQ(count(drawn, "stroke:none"), 3U);
}

TEST(PagePictureTest, ATensorHasAllItsSlicesAndATable) {
  const json page = page_of(picture_of(Layout({40, 4, 6}, grid({20}), {P::shard(0)}), 4));
  const json& tensor = page["figures"][0];
  EXPECT_EQ(tensor["kind"], "tensor");
  ASSERT_EQ(tensor["slices"].size(), 20U);
  EXPECT_EQ(tensor["slices"][19]["heading"], "[38:40]");
  expect_words(tensor["slices"][19]["svg"], {"data-ranks=\"19\"", "offsets: [38, 0, 0]"});
  EXPECT_EQ(page["figures"][1]["kind"], "mesh");
  EXPECT_EQ(page["figures"][1]["beside"], true);
  const json& table = page["figures"][2];
  EXPECT_EQ(table["lines"][3]["rank"], 3);
  EXPECT_EQ(table["lines"][3]["words"][0], "3");
  EXPECT_EQ(table["lines"][3]["fraction"], 1.0);
  expect_words(detail::page_style(), {":root[data-theme=dark] .sw-ink"});
}

TEST(PagePictureTest, LinesOfTensorsLeadToTheirPictures) {
  const Layout rows({4, 4}, grid({2}), {P::shard(0)});
  const json page = page_of(picture_of({{"a", {4, 4}, "float32", 4, rows},
                                        {"b", {4, 4}, "float32", 4, rows},
                                        {"c", {4, 4}, "float64", 8, rows},
                                        {"d", {4}, "float32", 4, {}}}));
  std::vector<int64_t> details;
  for (const json& line : page["figures"][0]["lines"]) details.push_back(line["detail"]);
  EXPECT_EQ(details, (std::vector<int64_t>{0, 0, 1, -1}));
  EXPECT_EQ(page["details"].size(), 2U);
}

TEST(JsonPictureTest, ATensorIsItsValues) {
  const Layout layout({5, 4}, grid({2}, {3, 1}), {P::shard(0)});
  EXPECT_EQ(values_of(picture_of(layout, 4, {"dp"}))["figures"][0], json::parse(R"json({
    "kind": "tensor", "heading": "", "caption": "[5, 4] as [Shard(0)] on (dp=2), ranks 1,3, 80 bytes",
    "shape": [5, 4], "element_bytes": 4, "bytes": 80, "placements": ["Shard(0)"],
    "mesh": {"shape": [2], "ranks": [3, 1], "dim_names": ["dp"]},
    "ranks": [{"rank": 3, "bytes": 48, "boxes": [{"offsets": [0, 0], "sizes": [3, 4]}]},
              {"rank": 1, "bytes": 32, "boxes": [{"offsets": [3, 0], "sizes": [2, 4]}]}]
  })json"));
  const json shards = values_of(picture_of(LocalShards{2, {{{6, 0}, {1, 4}}, {{0, 0}, {2, 4}}}}, 2))["figures"][0];
  EXPECT_FALSE(shards.contains("mesh"));
  EXPECT_EQ(shards["ranks"][0]["boxes"].size(), 2U);
  EXPECT_EQ(shards["ranks"][0]["bytes"], 24);
}

TEST(JsonPictureTest, AMoveIsItsTrafficAndItsLinks) {
  const auto two = grid({2});
  const Plan made = plan(Layout({8, 4}, two, {P::shard(0)}), Layout({8, 4}, two, {P::shard(1)}), 4);
  const json figures = values_of(difference_of(made))["figures"];
  EXPECT_EQ(figures[2], json::parse(R"json({
    "kind": "traffic", "heading": "bytes from ranks to ranks", "blocks": [[0], [1]], "bytes": [[0, 32], [32, 0]],
    "bytes_along": [64], "bytes_across": 0, "senders_counted": 2
  })json"));
  EXPECT_EQ(figures[3]["kind"], "mesh");
  EXPECT_EQ(figures[4]["lines"][0]["words"], (std::vector<std::string>{"along mesh dim 0, of 2", "64", "100.0%"}));
}

TEST(TensorListTest, OrdinaryTensorsAreHeldByEveryRank) {
  const Layout rows({4, 4}, grid({2}, {7, 5}), {P::shard(0, {1, 3})});
  expect_words(draw(picture_of({{"a", {4, 4}, "float32", 4, rows}, {"b", {2}, "float32", 4, {}}})),
               {"2 tensors, 72 bytes; 80 bytes on 2 ranks", "[Shard(0, sizes=[1, 3])]", "ordinary tensor", "1.50",
                "     7     24", "     5     56"});
  expect_words(draw(picture_of({{"b", {2}, "float32", 4, {}}}, 3)),
               {"1 tensor, 8 bytes; 8 bytes on 1 rank", "     3      8"});
  expect_words(draw(picture_of(std::vector<NamedTensor>{})), {"0 tensors, 0 bytes"});
}

TEST(TensorListTest, LocalShardsAreThoseOfThisRank) {
  const LocalShards shards{0, {{{6, 0}, {1, 4}}, {{0, 0}, {2, 4}}}};
  const Layout rows({4, 4}, grid({2}), {P::shard(0)});
  const Picture list = picture_of({{"a", {3, 4}, "float32", 4, shards},
                                   {"b", {4, 4}, "float32", 4, rows},
                                   {"c", {0, 4}, "float32", 4, LocalShards{}}},
                                  1);
  expect_words(draw(list), {"3 tensors, 112 bytes; 112 bytes on 2 ranks", "LocalShardsWrapper of 2 shards     48",
                            "LocalShardsWrapper of 0 shards      0", "     0     32", "     1     80"});
  const json page = page_of(list);
  expect_words(page["details"][0]["caption"], {"LocalShardsWrapper of 2 shards on rank 1"});
}

TEST(PlanPictureTest, StepsHaveAPictureAndTraffic) {
  const auto square = grid({2, 2});
  const Plan made = plan(Layout({8, 16}, square, {P::shard(0), P::partial()}), Layout({8, 16}, square, {P(), P()}), 4);
  ASSERT_EQ(made.steps.size(), 2U);
  const Picture picture = picture_of(made);
  expect_words(draw(picture), {"before", "step 1 of 2: all-reduce along mesh dim 1, 1,024 bytes",
                               "step 2 of 2: all-gather", "from \\ to", "received"});
  expect_words(draw(picture, {.format = "svg"}), {"sw-heat", "from: rank 0\nto: rank 1\nbytes: 256"});
}

TEST(PlanPictureTest, ADifferenceTellsWhatMovesAndByWhichLink) {
  const auto square = grid({2, 2});
  const Plan made = plan(Layout({8}, square, {P::shard(0), P()}), Layout({8}, square, {P(), P::shard(0)}), 4);
  expect_words(draw(difference_of(made)),
               {"from\n", "to\n", "along mesh dim 0, of 2", "along mesh dim 1, of 2", "what moves"});
  const Plan away = plan(Layout({8}, grid({2}), {P::shard(0)}), Layout({8}, grid({2}, {2, 3}), {P::shard(0)}), 4);
  expect_words(draw(difference_of(away)),
               {"between the meshes", "     0   2  [0:4]     16", "     1   3  [4:8]     16"});
}

TEST(PlanPictureTest, MeshDimsGoByTheirNames) {
  const auto square = grid({2, 2});
  const Plan made = plan(Layout({8}, square, {P::shard(0), P::partial()}), Layout({8}, grid({4}), {P::shard(0)}), 4);
  const MeshNames names{{"dp", "tp"}, {"world"}};
  expect_words(draw(difference_of(made, names)), {"along dp, of 2", "along tp, of 2"});
  expect_words(draw(difference_of(made, names), {.format = "svg"}), {"(dp=2, tp=2)", "(world=4)", "place: dp 1, tp 0"});
  expect_words(draw(picture_of(made, names)), {"reduce along tp, "});
  // from, to, the dims in which senders and receivers differ
  const auto steps = [&](std::vector<P> from, std::vector<P> to) {
    const auto both = grid({2, 2});
    return draw(picture_of(plan(Layout({8, 16}, both, std::move(from)), Layout({8, 16}, both, std::move(to)), 4),
                           MeshNames{names.source, names.source}));
  };
  expect_words(steps({P::shard(0), P()}, {P(), P()}), {"all-gather along dp, 1,024 bytes"});
  expect_words(steps({P::shard(0), P::shard(0)}, {P::shard(0), P()}), {"all-gather along tp, "});
  expect_words(steps({P::shard(0), P::shard(1)}, {P(), P()}), {"all-gather along dp, tp, "});
  expect_words(steps({P(), P()}, {P::shard(0), P()}), {"slice, 0 bytes"});
  EXPECT_THROW(difference_of(made, {{"dp"}, {}}), c10::ValueError);
  EXPECT_THROW(picture_of(Layout({8}, square, {P(), P()}), 4, {"dp"}), c10::ValueError);
}

TEST(PlanPictureTest, AMatrixOfManyBytesFitsTheWidth) {
  const Plan made =
      plan(Layout({4096, 4096}, grid({16}), {P::shard(0)}), Layout({4096, 4096}, grid({16}), {P::shard(1)}), 4);
  for (const int64_t width : {120, 100, 80, 60}) {
    const std::string text = draw(difference_of(made), {.max_width = width});
    const size_t begin = text.find("  from \\ to");
    ASSERT_NE(begin, std::string::npos);
    EXPECT_LE(static_cast<int64_t>(text.find('\n', begin) - begin), width);
  }
}

/// Large meshes are folded, in every format.
TEST(FormatsTest, TenThousandRanksStayReadable) {
  const std::vector<Layout> layouts = {
      Layout({100000, 64}, grid({10000}), {P::shard(0)}),
      Layout({100000, 64}, grid({100, 100}), {P::shard(0), P::shard(1)}),
      Layout({1000, 100, 64}, grid({100, 100}), {P::shard(0), P::shard(1)}),
      Layout({64}, grid({10000}), {P::partial()}),
      Layout({64}, grid({10000}), {P()}),
  };
  for (const Layout& layout : layouts) {
    const Picture picture = picture_of(layout, 4);
    EXPECT_LT(count(draw(picture), "\n"), 200U) << to_string(layout);
    EXPECT_LT(draw(picture, {.format = "svg"}).size(), 600000U) << to_string(layout);
    EXPECT_LT(draw(picture, {.format = "page"}).size(), 12000000U) << to_string(layout);
  }
}

}  // namespace

TEST(FormatsTest, FiguresOfSomeRanksSaySo) {
  const auto many = grid({2048});
  const Plan made = plan(Layout({2048, 2048}, many, {P::shard(0)}), Layout({2048, 2048}, many, {P::shard(1)}), 4);
  for (const Picture& picture : {picture_of(made), difference_of(made)})
    for (const auto& format : detail::kPictureFormats)
      EXPECT_NE(format.draw(picture, {}).find("evenly spaced, and scaled up to 2,048"), std::string::npos)
          << format.name;
}

}  // namespace shardwise::formats_test
