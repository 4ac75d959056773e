// runtime/tensor/flat_part.h: the single tensor that a rank's pieces form in a layout with joined boxes.
//
// [4, 5] as RaggedShard((0, 1), (3, 11, 6)), rank 1: pieces [1, 2], [1, 5] and [1, 4], one after another in memory; flat: [11]
// [8, 5] as _StridedShard(0, split_factor=2) over 2 ranks: pieces [2, 5] and [2, 5], views of the local tensor [4, 5]
#pragma once

#include "runtime/tensor/spec.h"

namespace shardwise {

/// The pieces of `spec` as views of `flat`. Pre: spec.flat_sizes() is set and equals the sizes of `flat`, which is contiguous if
/// spec.layout() has ranges.
Shards pieces_of(const Spec& spec, const at::Tensor& flat);

/// `pieces` if they are views of one tensor as pieces_of() gives them, otherwise copies that are. Pre: spec.flat_sizes() is set.
Shards joined(const Spec& spec, Shards pieces);

/// The tensor over the memory of `pieces`; new memory if they have no elements. Pre: they are joined().
at::Tensor flat_part(const Spec& spec, const Shards& pieces);

/// A new tensor for all pieces of this rank, with the strides that `spec` has. Pre: spec.flat_sizes() is set.
at::Tensor empty_flat_part(const Spec& spec, const at::TensorOptions& options);

}  // namespace shardwise
