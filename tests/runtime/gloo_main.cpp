// Runs collectives_test.cpp on processes over Gloo, with no Python in them:
//   torchrun --no-python --nproc-per-node 3 gloo_test
#include "runtime/env_world.h"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  shardwise::init_from_env(std::chrono::seconds(60));
  return RUN_ALL_TESTS();
}
