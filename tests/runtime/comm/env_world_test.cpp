#include "runtime/comm/env_world.h"

#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace shardwise::env_world_test {
namespace {

/// The variables of torchrun, as `set` says and without the others, for the time of its life.
class EnvWorldTest : public testing::Test {
 protected:
  void TearDown() override {
    set({});
    World::set_process(nullptr);
  }

  void set(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }

  std::string error() {
    try {
      init_from_env();
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return {};
  }
};

TEST_F(EnvWorldTest, MissingVariablesAreNamedWithTheWayOut) {
  set({});
  expect_error("WORLD_SIZE is not set. Start the program with torchrun --no-python", error());
  set({{"WORLD_SIZE", "2"}});
  expect_error("RANK is not set", error());
  set({{"WORLD_SIZE", "2"}, {"RANK", "0"}});
  expect_error("MASTER_PORT is not set", error());
  set({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "29500"}});
  expect_error("MASTER_ADDR is not set", error());
}

TEST_F(EnvWorldTest, VariablesThatAreNoFittingNumbersAreNamed) {
  set({{"WORLD_SIZE", "two"}});
  expect_error("WORLD_SIZE is \"two\". Give it a number in [1,", error());
  set({{"WORLD_SIZE", "2"}, {"RANK", "2"}});
  expect_error("RANK is \"2\". Give it a number in [0, 2)", error());
  set({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "80x"}});
  expect_error("MASTER_PORT is \"80x\"", error());
}

TEST_F(EnvWorldTest, OneProcessMeetsNobody) {
  set({{"WORLD_SIZE", "1"}, {"RANK", "0"}});
  const auto world = init_from_env();
  EXPECT_EQ(world, World::current());
  EXPECT_EQ(world->size(), 1);
}

TEST_F(EnvWorldTest, SingleWorldNeedsNoVariables) {
  const auto world = single_world();
  EXPECT_EQ(world, World::current());
  EXPECT_EQ(world->group({0})->size(), 1);
}

}  // namespace
}  // namespace shardwise::env_world_test
