#include "runtime/api/version.h"

#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include <regex>
#include <string>

namespace shardwise {
namespace {

TEST(VersionTest, IsAReleaseOrSaysHowManyCommitsAfterOne) {
  const std::regex form(R"(\d+(\.\d+)*(\.dev\d+(\+g[0-9a-f]+)?)?)");
  EXPECT_TRUE(std::regex_match(std::string(version()), form)) << version();
}

TEST(VersionTest, NamesTheTorchOfTheHeaders) {
  const std::string minor = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  EXPECT_EQ(built_with_torch().substr(0, minor.size()), minor);
}

}  // namespace
}  // namespace shardwise
