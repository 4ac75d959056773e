// runtime/execute.h: carries out plans: the only place that moves a tensor's values between ranks.
#pragma once

#include "runtime/dtensor_impl.h"

namespace shardwise {

/// This rank's pieces of the same tensor laid out as `destination`; the source's own where nothing changes, else new memory.
/// Below autograd. Collective over the mesh (nothing to do on non-members).
///
/// Throws: c10::ValueError for differing sizes, dtypes, or meshes over other ranks than the source's.
/// Cost: one all-to-all-v of the bytes that must move, plus an all-reduce per mesh dim from Partial to Replicate.
Shards move(const SpecPtr& source, const Shards& shards, const SpecPtr& destination);

/// Uninitialised memory for a piece of `sizes`, its dims ordered as the tensor's strides order them.
at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device);

/// What leaves a reduction unchanged: 0 for sum and avg, 1 for product, the lowest value for max, the highest for min.
c10::Scalar identity_of(Reduce reduce, c10::ScalarType dtype);

}  // namespace shardwise
