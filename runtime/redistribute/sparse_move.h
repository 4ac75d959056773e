// runtime/redistribute/sparse_move.h: moves the entries of a sparse tensor between ranks.
#pragma once

#include "runtime/tensor/sparse.h"

namespace shardwise {

/// This rank's pieces of the same tensor laid out as `to`: each entry goes to every rank whose boxes have its index, sums of Partials
/// are their entries together. Never coalesced. An entry whose dense dims were sharded and no longer are comes in as many parts, padded with
/// zeros. Below autograd. Collective over the mesh.
///
/// Throws: c10::NotImplementedError for another mesh, c10::ValueError for other sizes or a Partial that is no sum.
/// Cost: two messages to each rank (counts, then indices and values), of what the receiver's boxes have; none where the source is replicated.
Shards move_sparse(const DTensorImpl& source, const SpecPtr& to);

}  // namespace shardwise
