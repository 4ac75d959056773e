// ops/sparse/sparse.h: operators on sparse (COO) tensors, under a dispatch key above that of the dense kernels.
#pragma once

#include "ops/support/kernels.h"

namespace shardwise {

/// Kernels of aten operators that have a distributed sparse tensor among their arguments, below autograd.
AtenKernels& aten_sparse_kernels();

/// Throws c10::NotImplementedError for a layout that DTensors do not have; the op is "to_sparse".
void check_is_coo(std::optional<at::Layout> layout);

/// The operators that sparse/ has no kernel for: by a SparseRule, or with an error that names to_dense(). Called when the first sparse tensor is made.
void register_sparse();

}  // namespace shardwise
