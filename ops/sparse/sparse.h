// ops/sparse/sparse.h: operators on sparse (COO) tensors, under a dispatch key above that of the dense kernels.
#pragma once

#include "ops/support/kernels.h"

namespace shardwise {

/// Kernels of aten operators that have a distributed sparse tensor among their arguments, below autograd.
AtenKernels& aten_sparse_kernels();

// Indices and columns of a sparse tensor's entries within one shard's box; plain tensors.

/// Converts indices [sparse dims, n] from the whole tensor to the box, and back.
at::Tensor indices_within(const at::Tensor& indices, const Box& box);
at::Tensor indices_of_whole(const at::Tensor& indices, const Box& box);

/// The box's columns of `values`, which may have more.
at::Tensor columns_of(at::Tensor values, const Box& box, int64_t sparse_dim);

/// Throws c10::NotImplementedError for a layout that DTensors do not have; the op is "to_sparse".
void check_is_coo(std::optional<at::Layout> layout);

/// The operators that sparse/ has no kernel for: by a SparseRule, or with an error that names to_dense(). Called when the first sparse tensor is made.
void register_sparse();

}  // namespace shardwise
