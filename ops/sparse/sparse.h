// ops/sparse/sparse.h: operators on sparse tensors. They come here before they come to the dense ones' kernels.
#pragma once

#include "ops/support/kernels.h"

namespace shardwise {

/// Kernels of aten operators that have a distributed sparse tensor among their arguments, below autograd.
AtenKernels& aten_sparse_kernels();

/// Making sparse tensors and taking them apart. Called before register_dispatch().
void register_sparse_entries();
/// Sums, norms and any() of all their values. Called before register_sparse().
void register_sparse_reductions();
/// Everything else: by a SparseRule, or an error that says to_dense(). Called after register_dispatch().
void register_sparse();

}  // namespace shardwise
