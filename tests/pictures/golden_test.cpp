// Pictures of every kind, letter by letter: tests/pictures/golden/<name>.txt and .svg.
//
// SHARDWISE_UPDATE_GOLDEN=1 pure_test --gtest_filter='Golden*' writes the files anew. Look at them before they are committed.
#include "pictures/picture.h"

#include "tests/placements/layouts.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace shardwise::golden_test {
namespace {

using P = Placement;

struct Case {
  std::string name;
  Picture picture;
};

/// What gtest says where a test of one fails.
void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

Layout pieces_layout() {
  return Layout(
      {8, 16}, grid({3}),
      {P::enumerable({{{0, 0}, {8, 4}, 1}, {{0, 4}, {3, 12}, 0}, {{3, 4}, {5, 6}, 2}, {{3, 10}, {5, 6}, 1}})});
}

std::vector<Case> cases() {
  const Layout rows({8, 16}, grid({4}), {P::shard(0, {1, 3, 1, 3})});
  std::vector<Case> all = {
      {"uneven_rows", picture_of(rows, 4)},
      {"empty_shard", picture_of(Layout({2}, grid({3}), {P::shard(0)}), 4)},
      {"no_elements", picture_of(Layout({0, 5}, grid({2}), {P::shard(0)}), 4)},
      {"number", picture_of(Layout({}, grid({2}), {P()}), 8)},
      {"grid", picture_of(Layout({10, 7}, grid({2, 2}), {P::shard(0), P::shard(1)}), 4, {"dp", "tp"})},
      {"nested", picture_of(Layout({11, 5}, grid({2, 3}), {P::shard(0), P::shard(0)}), 4)},
      {"replicate", picture_of(Layout({6, 6}, grid({3}), {P()}), 4)},
      {"partial", picture_of(Layout({8, 16}, grid({2, 3}), {P::shard(0), P::partial()}), 4)},
      {"partial_number", picture_of(Layout({}, grid({4}), {P::partial(Reduce::kMax)}), 4)},
      {"pieces", picture_of(pieces_layout(), 2)},
      {"submesh", picture_of(Layout({8, 16}, grid({2}, {3, 1}), {P::shard(1)}), 4)},
      {"three_dims", picture_of(Layout({5, 4, 6}, grid({2, 2}), {P::shard(0), P::shard(2)}), 4)},
      {"four_dims", picture_of(Layout({3, 2, 4, 6}, grid({2, 2}), {P::shard(0), P::shard(1)}), 4)},
      {"many_slices", picture_of(Layout({1000, 4, 4}, grid({1000}), {P::shard(0)}), 4)},
      {"many_ranks", picture_of(Layout({10000, 64}, grid({100, 100}), {P::shard(0), P::shard(0)}), 4)},
      {"mesh", picture_of(*grid({2, 2, 3}), {"pp", "dp", "tp"})},
  };
  const Layout columns({8, 16}, rows.grid_ptr(), {P::shard(1)});
  all.push_back({"difference", difference_of(plan(rows, columns, 4))});
  const auto square = grid({2, 2});
  const Layout partial({8, 16}, square, {P::shard(0), P::partial()});
  all.push_back({"plan", picture_of(plan(partial, Layout({8, 16}, square, {P(), P()}), 4))});
  all.push_back(
      {"difference_of_meshes", difference_of(plan(rows, Layout({8, 16}, grid({2}, {5, 4}), {P::shard(0)}), 4))});
  all.push_back({"no_difference", difference_of(plan(rows, rows, 4))});
  all.push_back({"tensors", picture_of({{"up.weight", {8, 16}, "float32", 4, rows},
                                        {"down.weight", {8, 16}, "float32", 4, columns},
                                        {"up.again", {8, 16}, "float32", 4, rows},
                                        {"norm.weight", {16}, "bfloat16", 2, {}}})});
  return all;
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class GoldenTest : public testing::TestWithParam<Case> {};

TEST_P(GoldenTest, IsDrawnAsBefore) {
  const auto folder = std::filesystem::path(SHARDWISE_GOLDEN_FOLDER);
  const Case& each = GetParam();
  for (const auto& [format, suffix] : {std::pair{"text", ".txt"}, std::pair{"svg", ".svg"}}) {
    const auto path = folder / (each.name + suffix);
    const std::string drawn = draw(each.picture, {.format = format});
    EXPECT_EQ(drawn, draw(each.picture, {.format = format}));
    if (std::getenv("SHARDWISE_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << drawn;
    EXPECT_EQ(drawn, file_text(path)) << path << " differs. SHARDWISE_UPDATE_GOLDEN=1 writes it anew.";
  }
}

INSTANTIATE_TEST_SUITE_P(Pictures, GoldenTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shardwise::golden_test
