// Runs collectives_test.cpp on processes over Gloo, with no Python in them:
//   torchrun --standalone --no-python --nproc-per-node 3 build/gloo_test
#include "runtime/comm/env_world.h"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto world = shardwise::init_from_env(std::chrono::seconds(60));
  if (world->rank() > 0) {  // rank 0 reports; the others print what fails
    GTEST_FLAG_SET(brief, true);
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_xml_generator());  // --gtest_output names one file for all
  }
  return RUN_ALL_TESTS();
}
