// runtime/tensor/flat_part.h: the single tensor that a rank's pieces of a ragged layout form.
//
// [4, 5] as RaggedShard((0, 1), (3, 11, 6)), rank 1: pieces [1, 2], [1, 5] and [1, 4], one after another in memory; flat: [11]
#pragma once

#include "runtime/tensor/shards.h"

namespace shardwise {

/// The pieces of `spec` as views of `flat`, which has this rank's elements in a row. Pre: spec.flat_sizes() is set and equals the sizes of
/// `flat`; `flat` is contiguous.
Shards pieces_of(const Spec& spec, const at::Tensor& flat);

/// `pieces` if they follow each other in memory, otherwise copies that do. Pre: spec.flat_sizes() is set.
Shards joined(const Spec& spec, Shards pieces);

/// Pieces that follow each other as one tensor over their memory; new memory if they have no elements. Pre: they are joined().
at::Tensor flat_part(const Spec& spec, const Shards& pieces);

}  // namespace shardwise
