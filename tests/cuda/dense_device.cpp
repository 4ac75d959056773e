// tests/cuda/dense_device.cpp: makes every comparison with dense results, in all tests of this program, run on a GPU that the ranks share.
#include "tests/support/dense.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_inv.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace shardwise {
namespace {

const bool is_set = [] {
  if (c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() == 0) return false;
  set_dense_device({.type = c10::kCUDA});
  // torch loads its linear algebra at the first call, which threads must not make together.
  at::linalg_inv(at::eye(2, c10::kCUDA));
  return true;
}();

}  // namespace
}  // namespace shardwise
