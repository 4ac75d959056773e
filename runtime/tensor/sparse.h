// runtime/tensor/sparse.h: distributed sparse (COO) tensors: each piece is a sparse tensor of the piece's sizes, its indices counted from the
// piece's first.
//
//   an [11, 4] table as Shard(0), 6 and 5 rows; entries in rows 2, 7, 7 (sparse_dim 1: the columns are dense):
//   rank 0: sparse [6, 4], indices [[2]], values [1, 4]        rank 1: sparse [5, 4], indices [[1, 1]], values [2, 4]
//   indices [1, 3] as [Shard(1, sizes=[1, 2])], of global rows      values [3, 4] as [Shard(0, sizes=[1, 2])]
//
// A Partial(sum) of sparse pieces has the entries of all ranks together. layout() is kSparse; sizes and strides are the dense ones.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <memory>
#include <vector>

namespace shardwise {

/// How many entries each piece has: a list per rank of the mesh, in its order, with a number per box.
using EntryCounts = std::vector<std::vector<int64_t>>;

/// What is known of a sparse tensor's entries beyond this rank's own. All but `counts` is equal on all ranks, outside ones included.
struct SparseEntries {
  /// Dims that indices speak of, the first ones. Gradients of lookups: 1, and the columns are dense.
  int64_t sparse_dim = 1;
  /// Every piece is coalesced: sorted indices, none twice. Never of a Partial.
  bool is_coalesced = false;
  /// Null until the ranks have told each other.
  std::shared_ptr<const EntryCounts> counts;
  /// Null in a sparse tensor. In the tensor of its indices: the sparse tensor's spec, by which new values find their pieces.
  SpecPtr indexed;
};

/// A distributed sparse tensor of `spec` over these pieces (aliased; writes to the tensor write to them); none on a non-member.
///
/// Pre: pieces agree with `spec->boxes()` in number and sizes and have `entries.sparse_dim`; ranks that a mesh dim replicates, or
/// whose dense dims it shards, hold the same indices in the same order; Partials are sums.
at::Tensor wrap_sparse(SpecPtr spec, Shards shards, SparseEntries entries = {});

/// Has `prepare` called once, before the first of them is made: that is when their kernels are registered.
void at_first_sparse(void (*prepare)());

/// Null where `tensor` is not a distributed sparse one.
inline DTensorImpl* maybe_sparse(const at::TensorBase& tensor) {
  auto* impl = maybe_dtensor(tensor);
  return impl && impl->is_sparse() ? impl : nullptr;
}

/// The counts of all ranks' entries, agreed on at the first call and kept. A non-member sees zeros.
/// Collective over the mesh at that call: one message of a number per piece; none where nothing shards the entries.
std::shared_ptr<const EntryCounts> agreed_counts(const DTensorImpl& sparse);

/// The indices [sparse_dim, n] and the values [n, dense sizes] of a sparse tensor as distributed tensors. A mesh dim that shards a
/// sparse dim, and a Partial, shards n; one that shards a dense dim shards that of the values; of several pieces the values are padded
/// with zeros to all columns.
struct EntrySpecs {
  SpecPtr indices, values;
};
/// Throws: c10::ValueError where ranks of equal entries count differently.
EntrySpecs entry_specs(const Spec& spec, int64_t sparse_dim, const EntryCounts& counts);

}  // namespace shardwise
