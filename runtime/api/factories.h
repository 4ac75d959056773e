// runtime/api/factories.h: distributed tensors for which each rank fills its own part.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// A tensor filled with one value. Throws: c10::ValueError for Partial placements.
at::Tensor full(c10::IntArrayRef sizes, const at::Scalar& value, const MeshPtr& mesh, Placements placements,
                at::ScalarType dtype);
/// A tensor with uninitialized values.
at::Tensor empty(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype);

}  // namespace shardwise
