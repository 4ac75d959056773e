// tests/accelerator/dense_device.cpp: makes every comparison with dense results, in all tests of this program, run on the
// accelerator, and lookups' kernels too.
#include "ops/embedding/kernel_launch.h"
#include "tests/support/accelerator/accelerator.h"
#include "tests/support/accelerator/stream_backend.h"
#include "tests/support/dense.h"

namespace shardwise::accelerator {
namespace {

const bool is_set = [] {
  set_dense_device({kType, &run_rank, &faults_in_lines});
  set_host_kernels(kType, &run_host_kernel);
  return true;
}();

}  // namespace
}  // namespace shardwise::accelerator
