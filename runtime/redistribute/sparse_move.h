// runtime/redistribute/sparse_move.h: moves the entries of a sparse tensor between ranks.
#pragma once

#include "runtime/tensor/sparse.h"

namespace shardwise {

/// This rank's pieces of the tensor laid out as `to`. Each entry is sent to every rank whose boxes contain its index. Partial sums are not
/// added up: the result has the entries of all terms. Never coalesced. If dense dims were sharded and are not any more, an entry arrives in
/// several parts, padded with zeros. Below autograd. Collective over the mesh.
///
/// Throws: c10::NotImplementedError for another mesh, c10::ValueError for other sizes or a Partial that is not a sum.
/// Cost: two messages to each rank (counts, then indices and values) with the entries in the receiver's boxes; none if the source is
/// replicated.
Shards move_sparse(const DTensorImpl& source, const SpecPtr& to);

}  // namespace shardwise
