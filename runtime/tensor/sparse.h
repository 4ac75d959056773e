// runtime/tensor/sparse.h: distributed sparse (COO) tensors. Each piece is a sparse tensor of the piece's sizes, with indices relative to
// the piece's first index.
//
//   an [11, 4] table as Shard(0), 6 and 5 rows; entries in rows 2, 7, 7 (sparse_dim 1: the columns are dense):
//   rank 0: sparse [6, 4], indices [[2]], values [1, 4]        rank 1: sparse [5, 4], indices [[1, 1]], values [2, 4]
//   indices [1, 3] as [Shard(1, sizes=[1, 2])], of global rows      values [3, 4] as [Shard(0, sizes=[1, 2])]
//
// A Partial(sum) of sparse pieces has the entries of all ranks together. layout() is kSparse; sizes and strides are those of the dense
// tensor.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <memory>
#include <vector>

namespace shardwise {

/// The number of entries of each piece: a list per rank of the mesh, in mesh order, with a number per box.
using EntryCounts = std::vector<std::vector<int64_t>>;

/// Facts about a sparse tensor's entries beyond this rank's own. All except `counts` are equal on all ranks, including ranks outside the
/// mesh.
struct SparseEntries {
  /// The number of leading dims that indices cover. For gradients of lookups this is 1: the columns are dense.
  int64_t sparse_dim = 1;
  /// Every piece is coalesced: its indices are sorted and unique. Always false for a Partial.
  bool is_coalesced = false;
  /// Null until the ranks have exchanged their counts.
  std::shared_ptr<const EntryCounts> counts;
  /// In the tensor of a sparse tensor's indices: the sparse tensor's spec, with which new values find their pieces. Null in a sparse
  /// tensor.
  SpecPtr indexed;
};

/// A distributed sparse tensor of `spec` with these pieces (aliased; writes to the tensor write to them); none on a non-member.
///
/// Pre: pieces match `spec->boxes()` in number and sizes and have `entries.sparse_dim`; ranks along a mesh dim that replicates, or that
/// shards a dense dim, hold the same indices in the same order; Partials are sums.
at::Tensor wrap_sparse(SpecPtr spec, Shards shards, SparseEntries entries = {});

/// Makes `prepare` run once, before the first sparse tensor is created, to register the kernels for sparse tensors.
void at_first_sparse(void (*prepare)());

/// Null if `tensor` is not a distributed sparse tensor.
inline DTensorImpl* maybe_sparse(const at::TensorBase& tensor) {
  auto* impl = maybe_dtensor(tensor);
  return impl && impl->is_sparse() ? impl : nullptr;
}

/// The counts of all ranks' entries, exchanged at the first call and kept. A non-member gets zeros.
/// Collective over the mesh at that call: one message with a number per piece; none if nothing shards the entries.
std::shared_ptr<const EntryCounts> agreed_counts(const DTensorImpl& sparse);

/// The specs of a sparse tensor's indices [sparse_dim, n] and values [n, dense sizes] as distributed tensors. A mesh dim that shards a
/// sparse dim, or is Partial, shards n. A mesh dim that shards a dense dim shards the same dim of the values. For layouts in pieces, the
/// values are padded with zeros to all columns.
struct EntrySpecs {
  SpecPtr indices, values;
};
/// Throws: c10::ValueError if ranks that must have the same entries have different counts.
EntrySpecs entry_specs(const Spec& spec, int64_t sparse_dim, const EntryCounts& counts);

}  // namespace shardwise
