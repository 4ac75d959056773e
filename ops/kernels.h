// ops/kernels.h: operators that are answered by a kernel of our own instead of a rule.
#pragma once

#include "runtime/dtensor_impl.h"

#include <torch/library.h>

namespace shardwise {

/// Kernels of aten operators on distributed tensors, below autograd. They must be there before register_dispatch(), which gives
/// every other operator its own.
torch::Library& aten_kernels();

/// The same above autograd, in place of torch's derivative formula.
torch::Library& aten_autograd_kernels();

/// Answers `op` ("select.int") by other operators on distributed tensors, whose derivatives then apply.
template <class Kernel>
void add_composition(const char* op, Kernel* kernel) {
  aten_kernels().impl(op, kernel);
  aten_autograd_kernels().impl(op, kernel);
}

}  // namespace shardwise
