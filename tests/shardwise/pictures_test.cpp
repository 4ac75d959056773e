#include "shardwise/pictures.h"

#include "shardwise/dtensor.h"
#include "tests/support/either_world.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace sw = shardwise;

namespace shardwise::pictures_test {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Of every rank: true there, and for a rank outside of the mesh.
TEST(PicturesTest, ATensorIsShownUnderItsHeaderWithTheNamesOfItsMesh) {
  run_ranks(3, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2}, {"tp"});
    const sw::DTensor tensor = sw::distribute_tensor(at::arange(3), mesh, {sw::Shard(0, {3, 0})}, std::nullopt);
    std::ostringstream shown, drawn;
    sw::visualize_sharding(tensor, "a header", shown);
    drawn << sw::picture_of(tensor);
    expect_error("a header\n[3] as [Shard(0, sizes=[3, 0])] on (tp=2), 24 bytes", shown.str());
    EXPECT_EQ(shown.str(), "a header\n" + drawn.str() + "\n");
    expect_error("mesh of 2 ranks (tp=2)", draw(sw::picture_of(mesh)));
    expect_error("[picture]", error_of<c10::ValueError>([&] { draw(sw::picture_of(tensor), {.format = "pdf"}); }));
    EXPECT_THROW(sw::picture_of(at::ones({2})), c10::TypeError);
  });
}

TEST(PicturesTest, ADifferenceIsWhatTheMoveSends) {
  run_ranks(4, [](World&) {
    const sw::Mesh mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
    const sw::DTensor tensor = sw::zeros({8, 4}, mesh, {sw::Shard(0), sw::Replicate()});
    const std::string drawn = draw(sw::difference_of(tensor, {sw::Replicate(), sw::Replicate()}));
    for (const char* words : {"from\n", "to\n", "along dp, of 2", "100.0%"}) expect_error(words, drawn);
    EXPECT_THROW(sw::difference_of(tensor, {sw::Replicate()}), c10::ValueError);
    EXPECT_THROW(sw::difference_of(tensor, {sw::Shard(2), sw::Replicate()}), c10::IndexError);
  });
}

TEST(PicturesTest, AFileHasTheFormatOfItsSuffix) {
  const auto folder = std::filesystem::temp_directory_path();
  const Picture picture =
      picture_of(Layout({4, 2}, std::make_shared<const RankGrid>(RankGrid{{2}, {0, 1}}), {sw::Shard(0)}), 4);
  // suffix, what it begins with
  for (const auto& [suffix, begin] : {std::pair{".txt", "[4, 2] as"}, {".svg", "<svg "}, {".json", "{"}}) {
    const auto path = folder / (std::string("shardwise_pictures_test") + suffix);
    sw::save(picture, path.string());
    EXPECT_EQ(text_of(path).rfind(begin, 0), 0U) << suffix;
    std::filesystem::remove(path);
  }
  expect_error("End its name in one of .txt, .svg, .json",
               error_of<c10::ValueError>([&] { sw::save(picture, "a.png"); }));
  expect_error("'/none/a.svg' cannot be written: No such file",
               error_of<c10::Error>([&] { sw::save(picture, "/none/a.svg"); }));
}

}  // namespace
}  // namespace shardwise::pictures_test
