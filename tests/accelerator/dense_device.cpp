// tests/accelerator/dense_device.cpp: makes every comparison with dense results, in all tests of this program, run on the accelerator.
#include "tests/support/accelerator/accelerator.h"
#include "tests/support/accelerator/stream_backend.h"
#include "tests/support/dense.h"

namespace shardwise::accelerator {
namespace {

std::string faults() {
  std::string text;
  for (const std::string& fault : take_faults()) text += fault + "\n";
  return text;
}

const bool is_set = [] {
  set_dense_device({kType, &run_rank, &faults});
  return true;
}();

}  // namespace
}  // namespace shardwise::accelerator
