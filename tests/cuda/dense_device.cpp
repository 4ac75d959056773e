// tests/cuda/dense_device.cpp: makes every comparison with dense results, in all tests of this program, run on a GPU that the ranks share.
#include "tests/support/dense.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace shardwise {
namespace {

const bool is_set = [] {
  if (c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() > 0) set_dense_device({.type = c10::kCUDA});
  return true;
}();

}  // namespace
}  // namespace shardwise
