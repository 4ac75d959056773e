// ops/support/host_integers.h: integer tensors whose values an operator needs on the host.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// The elements of `tensor` in row-major order, gathered to every rank if it is distributed.
Dims integers_in(const at::Tensor& tensor);

}  // namespace shardwise
